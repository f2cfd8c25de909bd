"""A summary of the results for each paper, shown at the top of docs/reproductions.md."""

FINDINGS = {
    "FedCAMS": "The bits of its tables come out to the last printed digit, and a larger k is better throughout. FedAMS "
    "is ahead of FedAvg, FedAdam and FedAMSGrad, but behind FedYogi; sign is ahead of top_k:1/64 rather than level "
    "with it; small epsilons fail. All of that is LeNet-5 on Fashion-MNIST, which has no batch norm and does not stand "
    "the paper's server rate of 1 as ResNet-18 does.",
    "Fed-EF": "With memory and SGD, sign, top_k and heavy_sign end where full precision does, with 1 to 3 % of its "
    "bytes; q_A stays below 1 everywhere; more participants speed it up; dropping old memories helps the gradient. Not "
    "so: with AMS heavy_sign is ahead of sign here, and sign without memory is nine points worse, but does not "
    "collapse.",
    "FedCOMGATE": "FedGATE ends where SCAFFOLD does with half of its uplink, and FedCOMGATE with a sixth of that; mild "
    "sparsification costs next to nothing; more local steps make up for noise. The noise itself hurts only when it "
    "moves a quantizer's grid by more than a quarter.",
    "FedAMD": "What the paper says about its own settings holds in part, with ten local steps over all 400 rounds: "
    "{0,1} is as good as the optimal p, {0,0,1} is much worse; but p = 0.9, next to the optimum, collapsed. With five "
    "steps the patterns change places. That it beats the baselines does not: FedAvg stands a rate of 0.1 here, three "
    "to ten times what FedAMD stands, and is at 75 % in fewer rounds ([why](results.md#fedamds-table-2-a-20)).",
    "FedBNLACA": "FedBNLACA needs a seventh of FedAMS's bytes for two to three points less; that its family is ahead "
    "in accuracy is not borne out. A threshold that skips whole updates saves a fifth of the bytes at best and costs "
    "accuracy; with top-k and memory hardly anything is skipped.",
    "Our own": "fed_laconic needs 51 to 84 times fewer bytes than FedAMS to within a point of its accuracy.",
}
