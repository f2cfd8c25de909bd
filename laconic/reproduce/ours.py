"""Our own claims: bytes to the accuracy of full precision, FedAMD's best settings, FedAMD with compressed links."""

from __future__ import annotations

from functools import partial

from laconic.reproduce.claims import Claim
from laconic.reproduce.experiments import BYTES, FED_AMD_LINKS, FED_AMD_SETTINGS, LANGUAGE_MODEL
from laconic.reproduce.measures import FINAL, LAST_FIVE, LOSS, MEGABYTES, cost_to, reached, to_accuracy, to_loss
from laconic.reproduce.study import Reproduction, Short, Study

_DEFAULT, _BEST = (
    cost_to(f"MB both ways to {100 * goal:.2f} %", "MB both ways", partial(reached, accuracy=goal))
    for goal in (0.7640, 0.8109)
)
BYTES_TO_ACCURACY = Reproduction(
    "Bytes to one point below the accuracy of full precision, with our own combination of parts",
    "This is our own study. There are two targets: one point below the mean accuracy of fed_ams in rounds 160 to 200, "
    "at its default rate and at its best rate. A run reaches a target when the mean of five evaluations does. The "
    "claims compare with the bytes of all 200 rounds of fed_ams, 1422 MB; the table shows its bytes to the target. Two-way "
    "Fed-EF and fed_laconic_1 run for 600 rounds, the others for 200",
    {
        "bytes-to-accuracy": Study(
            "Fashion-MNIST, LeNet-5, 20 of 100 clients with two shards each",
            BYTES,
            measures=(_DEFAULT, _BEST, FINAL, LAST_FIVE, MEGABYTES),
            claims={
                "to 76.40 %, fed_laconic_1 needs at most a fiftieth of the 1422 MB of fed_ams at its default rate": Claim(
                    _DEFAULT, "less", "fed_laconic_1", 28.4
                ),
                "to 81.09 %, fed_laconic_1 needs at most a fortieth of the 1422 MB of fed_ams at its best rate": Claim(
                    _BEST, "less", "fed_laconic_1", 35.6
                ),
                "to 76.40 %, two-way Fed-EF, and FedBNLACA at the default rates of fed_ams, "
                "need more bytes than fed_laconic_1": Claim(
                    _DEFAULT, "more", ("fed_ef_ams-two-way", "fed_bnlaca-same-rates"), "fed_laconic_1"
                ),
            },
            against="bytes",
            short=Short(labels=("fed_ams", "fed_ams-rate-0.1", "fed_laconic_1")),
            quick=("fed_ams", "fed_laconic_1", "fed_ef_ams-two-way"),
        )
    },
)


_ROUNDS, _TO_75 = to_accuracy(0.75, "rounds"), to_accuracy(0.75, "MB both ways")
FED_AMD_AT_ITS_BEST = Reproduction(
    "FedAMD at its best: the probability, the rate, clipping and the server's optimizer",
    "This is our own study, in the setting of FedAMD's Table 2 with 20 of 100 clients and shuffled batches. In each round "
    "of FedAMD, a participant is an anchor with probability p and otherwise a miner. Anchors renew their stored gradient, "
    "and miners train. In the sequential form, all participants are anchors in one round and miners in the next. Costs to "
    "75 % end at the first evaluation with at least this accuracy",
    {
        "fedamd-settings": Study(
            "A = 20, 200 rounds",
            FED_AMD_SETTINGS,
            measures=(_ROUNDS, _TO_75, FINAL, LAST_FIVE),
            short=Short(rounds=100),
            quick=("sequential, rate 0.03, server AMS", "sequential, rate 0.1, clipped to 1", "p = 0.5, rate 0.03"),
        )
    },
)
FED_AMD_IN_FEW_BYTES = Reproduction(
    "FedAMD with compressed links in both directions: bytes to 75 %",
    "This is our own study, in the setting of FedAMD's Table 2 with 20 of 100 clients and shuffled batches. In FedAMD, "
    "anchors renew their stored gradient, and miners train. In the sequential form, which we use here, all participants "
    "are anchors in one round and miners in the next. Updates are compressed by top_k with error feedback. The changes of "
    "the stored gradients and the broadcast of the model are compressed by top_k, and the mean of all stored gradients "
    "by qsgd:8. The first pass over all clients is not compressed, and its bytes count. Costs to 75 % end at the first "
    "evaluation with at least this accuracy",
    {
        "fedamd-links": Study(
            "A = 20, 400 rounds",
            FED_AMD_LINKS,
            measures=(_TO_75, to_accuracy(0.75, "uplink MB"), _ROUNDS, FINAL, LAST_FIVE),
            claims={
                "FedAMD with top_k:1/16 needs at most a fifth of the bytes of plain FedAMD": Claim(
                    _TO_75, "less", "top_k:1/16 both ways", "plain", factor=0.2
                )
            },
            against="bytes",
            short=Short(rounds=100),
            quick=("top_k:1/16 both ways",),
        )
    },
)


_ROUNDS_TO_LOSS, _BYTES_TO_LOSS = to_loss(2.8, "rounds"), to_loss(2.8, "MB both ways")
CHARACTER_MODEL = Reproduction(
    "A character language model: local SGD and AdamW, with dense and with compressed links",
    "This is our own study, on Tiny Shakespeare with one client per role and a transformer of two layers and 113,601 "
    "parameters. A model that knows only how often each character occurs has a loss of 3.16. Costs to a loss end at the "
    "first evaluation with at most this test loss. The rows SGD and AdamW have dense links, and fed_laconic runs without "
    "its noise limit",
    {
        "language-model": Study(
            "gpt:2x64, 5 of 50 roles per round",
            LANGUAGE_MODEL,
            measures=(_ROUNDS_TO_LOSS, _BYTES_TO_LOSS, to_loss(2.6, "MB both ways"), LOSS, FINAL, MEGABYTES),
            claims={
                "AdamW needs fewer rounds than SGD": Claim(_ROUNDS_TO_LOSS, "less", "AdamW", "SGD"),
                "with AdamW, fed_laconic needs at most a tenth of the bytes of dense links": Claim(
                    _BYTES_TO_LOSS, "less", "AdamW, fed_laconic", "AdamW", factor=0.1
                ),
                "with SGD, fed_laconic needs at most a tenth of the bytes of dense links": Claim(
                    _BYTES_TO_LOSS, "less", "SGD, fed_laconic", "SGD", factor=0.1
                ),
            },
            against="bytes",
            drawn="loss",
            seeds=3,
            short=Short(rounds=50),
            quick=("SGD", "AdamW", "AdamW, fed_laconic"),
        )
    },
)
