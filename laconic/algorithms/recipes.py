"""The named algorithms. Each recipe chooses the four parts and cites its paper.

Its keywords are the parameters of the parts: `fed_ams(local_lr=0.1, server_lr=0.03, beta2=0.9)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.downlinks.broadcast import Broadcast
from laconic.algorithms.downlinks.compressed import CompressedDownlink
from laconic.algorithms.downlinks.estimated import Estimated
from laconic.algorithms.downlinks.mirrored import Mirrored
from laconic.algorithms.downlinks.repeated import Repeated
from laconic.algorithms.methods.anchor_sampling import AnchorSampling
from laconic.algorithms.methods.compressed_gradients import DIANA, EF21, EF21SGDM, VRDIANA
from laconic.algorithms.methods.control_variates import ControlVariates
from laconic.algorithms.methods.controlled_averaging import SCAFCOM, SCALLION
from laconic.algorithms.methods.dynamic_regularization import FedDyn
from laconic.algorithms.methods.gradient_tracking import GradientTracking
from laconic.algorithms.methods.local_optimizers import AdamW
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.algorithms.methods.minibatch_sgd import MinibatchSGD
from laconic.algorithms.methods.own_training import OwnTraining
from laconic.algorithms.methods.recursive_gradient import BVRLSGD, MARINA, FedPAGE
from laconic.algorithms.optimizers.adaptive import AMS, Adagrad, Adam, AMSGrad, Yogi
from laconic.algorithms.optimizers.sgd import SGD
from laconic.algorithms.parameters import Changes
from laconic.algorithms.uplinks.compressed import Compressed
from laconic.algorithms.uplinks.lag import LAG
from laconic.algorithms.uplinks.lazy import Accelerated, Lazy
from laconic.algorithms.uplinks.shifted import Shifted
from laconic.compression import QSGD, Chain, DeadZone, HeavySign, Stochastic, TopK, Uniform
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.schedules import InverseSqrt

Recipe = Callable[..., Algorithm]
Named = TypeVar("Named", bound=Recipe)
RECIPES: dict[str, Recipe] = {}
# Importing a part registers its name. No recipe uses these parts.
_OTHER_PARTS = (LAG, OwnTraining, Repeated, Shifted)


def _recipe(function: Named) -> Named:
    RECIPES[function.__name__] = function
    return function


def make(name: str, **parameters: Any) -> Algorithm:
    """The algorithm of that name; an unknown name is a `ConfigError` with a suggestion."""
    if name not in RECIPES:
        if all(part.strip() in RECIPES for part in name.split(",")):
            raise ConfigError(f"algorithm '{name}': `laconic compare` takes several, separated by spaces")
        raise unknown_name("algorithm", name, RECIPES, listed="`laconic algorithms`")
    return RECIPES[name](**parameters)


@_recipe
def fed_avg(**parameters: Unpack[Changes]) -> Algorithm:
    """Federated averaging: w += b mean(u), weighted by size. McMahan et al., AISTATS 2017, Algorithm 1."""
    return Algorithm(LocalSGD(), optimizer=SGD(), name="fed_avg", weighting="size").replace(**parameters)


@_recipe
def fed_sgd(**parameters: Unpack[Changes]) -> Algorithm:
    """The FedAvg of the Fed-EF paper. Li and Li, ICML 2023, Algorithm 2 without compression."""
    return Algorithm(LocalSGD(), optimizer=SGD(), name="fed_sgd").replace(**parameters)


@_recipe
def fed_adagrad(**parameters: Unpack[Changes]) -> Algorithm:
    """Server Adagrad: v += y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Adagrad(), name="fed_adagrad").replace(**parameters)


@_recipe
def fed_adam(**parameters: Unpack[Changes]) -> Algorithm:
    """Server Adam: v = b2 v + (1 - b2) y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Adam(), name="fed_adam").replace(**parameters)


@_recipe
def fed_yogi(**parameters: Unpack[Changes]) -> Algorithm:
    """Server Yogi: v -= (1 - b2) sign(v - y^2) y^2. Reddi et al., ICLR 2021, Algorithm 2."""
    return Algorithm(LocalSGD(), optimizer=Yogi(), name="fed_yogi").replace(**parameters)


@_recipe
def fed_amsgrad(**parameters: Unpack[Changes]) -> Algorithm:
    """Server AMSGrad: vhat = max(vhat, v), eps outside the root. Wang et al., ICML 2022, Algorithm 1, option 2."""
    return Algorithm(LocalSGD(), optimizer=AMSGrad(), name="fed_amsgrad").replace(**parameters)


@_recipe
def fed_ams(**parameters: Unpack[Changes]) -> Algorithm:
    """AMSGrad with max stabilization: vhat = max(vhat, v, eps). Wang et al., ICML 2022, Algorithm 1, option 1."""
    return Algorithm(LocalSGD(), optimizer=AMS(), name="fed_ams").replace(**parameters)


@_recipe
def fed_cams(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAMS with error feedback: the error is added to the next update. Wang et al., ICML 2022, Algorithm 2."""
    uplink = Compressed(TopK(1 / 64), memory=True)
    return Algorithm(LocalSGD(), uplink, AMS(), name="fed_cams").replace(**parameters)


@_recipe
def fed_cams_two_way(**parameters: Unpack[Changes]) -> Algorithm:
    """FedCAMS compressed both ways: the server compresses its step (Li and Li, 2023, Algorithm 3)."""
    uplink, downlink = Compressed(TopK(1 / 64), memory=True), Broadcast(TopK(1 / 64))
    return Algorithm(LocalSGD(), uplink, AMS(), downlink, name="fed_cams_two_way").replace(**parameters)


@_recipe
def fed_ef_sgd(**parameters: Unpack[Changes]) -> Algorithm:
    """Error feedback by layer, server SGD. Li and Li, ICML 2023, Algorithm 1; two-way: `--downlink broadcast`."""
    uplink = Compressed(TopK(0.01), granularity="layer", memory=True)
    return Algorithm(LocalSGD(), uplink, SGD(), name="fed_ef_sgd").replace(**parameters)


@_recipe
def fed_ef_ams(**parameters: Unpack[Changes]) -> Algorithm:
    """Error feedback by layer, AMSGrad: eps in the root. Li and Li, ICML 2023, Algorithm 1 (two-way: Algorithm 3)."""
    uplink = Compressed(TopK(0.01), granularity="layer", memory=True)
    # A smaller rate than FedAMS's: with so small an epsilon every entry takes a step of about that rate.
    optimizer = AMSGrad(server_lr=0.01, beta2=0.999, epsilon=1e-8, epsilon_inside=True)
    return Algorithm(LocalSGD(), uplink, optimizer, name="fed_ef_ams").replace(**parameters)


@_recipe
def stc(**parameters: Unpack[Changes]) -> Algorithm:
    """Sparse ternary compression: error feedback both ways. Sattler et al., IEEE TNNLS 2020, Algorithm 2."""
    ternary = HeavySign(1 / 64, coding="rice")
    uplink, downlink = Compressed(ternary, memory=True), Broadcast(ternary)
    return Algorithm(LocalSGD(), uplink, SGD(), downlink, name="stc").replace(**parameters)


@_recipe
def qsparse_local_sgd(**parameters: Unpack[Changes]) -> Algorithm:
    """Sparse and quantized updates. Clients use error feedback. Basu et al., NeurIPS 2019, Algorithm 1."""
    uplink = Compressed(Chain(TopK(1 / 64), QSGD(4, norm="max")), memory=True)
    return Algorithm(LocalSGD(), uplink, SGD(), name="qsparse_local_sgd").replace(**parameters)


@_recipe
def diloco(**parameters: Unpack[Changes]) -> Algorithm:
    """Local AdamW, Nesterov on the server. Douillard et al., 2023, Algorithm 1."""
    method = LocalSGD(local_lr=1e-3, local_optimizer=AdamW(weight_decay=0.1), local_optimizer_state="kept")
    optimizer = SGD(server_lr=0.7, momentum=0.9, nesterov=True)
    return Algorithm(method, optimizer=optimizer, name="diloco").replace(**parameters)


@_recipe
def sparse_loco(**parameters: Unpack[Changes]) -> Algorithm:
    """DiLoCo with 2-bit top-k in chunks. A decaying memory replaces the momentum. Sarfi et al., 2025, Algorithm 1."""
    method = LocalSGD(local_lr=1e-3, local_optimizer=AdamW(weight_decay=0.1), local_optimizer_state="kept")
    compressor = Chain(TopK(1 / 32), Uniform(2, rounding="nearest"))
    uplink = Compressed(compressor, granularity="chunk:4096", memory=True, memory_decay=0.95)
    return Algorithm(method, uplink, name="sparse_loco").replace(**parameters)


@_recipe
def flasc(**parameters: Unpack[Changes]) -> Algorithm:
    """For LoRA, sparse both ways: the largest entries of model and update; server Adam. Kuo et al., 2024."""
    uplink, downlink = Compressed(TopK(1 / 4)), CompressedDownlink(TopK(1 / 4))
    return Algorithm(LocalSGD(), uplink, Adam(), downlink, name="flasc").replace(**parameters)


@_recipe
def fed_com(**parameters: Unpack[Changes]) -> Algorithm:
    """Unbiased quantized updates: no memory is needed. Haddadpour et al., AISTATS 2021, Algorithm 1."""
    uplink = Compressed(Uniform(8), granularity="layer")
    return Algorithm(LocalSGD(), uplink, SGD(), name="fed_com").replace(**parameters)


@_recipe
def fed_paq(**parameters: Unpack[Changes]) -> Algorithm:
    """FedCOM with server rate 1. Reisizadeh et al., AISTATS 2020, Algorithm 1."""
    uplink = Compressed(Uniform(8), granularity="layer")
    return Algorithm(LocalSGD(), uplink, SGD(), name="fed_paq").replace(**parameters)


@_recipe
def fed_nlaa(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAMS with lazy clients: they skip an update that is close to their last one.

    FedBNLACA's paper, Algorithm 1 with NLA.
    """
    return Algorithm(LocalSGD(), Lazy(), AMS(), name="fed_nlaa").replace(**parameters)


@_recipe
def fed_aa(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAMS with accelerated clients: the last update is added to a new one that is close to it.

    FedBNLACA's paper, Algorithm 1 with AA.
    """
    return Algorithm(LocalSGD(), Accelerated(), AMS(), name="fed_aa").replace(**parameters)


@_recipe
def fed_nlaca(**parameters: Unpack[Changes]) -> Algorithm:
    """FedCAMS with lazy clients. FedBNLACA's paper, Algorithm 3 with NLA."""
    uplink = Lazy(TopK(1 / 64), memory=True)
    return Algorithm(LocalSGD(), uplink, AMS(), name="fed_nlaca").replace(**parameters)


@_recipe
def fed_aca(**parameters: Unpack[Changes]) -> Algorithm:
    """FedCAMS with accelerated clients. FedBNLACA's paper, Algorithm 3 with AA."""
    uplink = Accelerated(TopK(1 / 64), memory=True)
    return Algorithm(LocalSGD(), uplink, AMS(), name="fed_aca").replace(**parameters)


@_recipe
def fed_bnlaca(**parameters: Unpack[Changes]) -> Algorithm:
    """Lazy and compressed both ways: the server sends C(w - z_i). FedBNLACA's paper, Algorithm 2 with NLA."""
    uplink, downlink = Lazy(TopK(1 / 64), memory=True), Mirrored(TopK(1 / 64), threshold=0.0)
    return Algorithm(LocalSGD(), uplink, AMS(), downlink, name="fed_bnlaca").replace(**parameters)


@_recipe
def fed_baca(**parameters: Unpack[Changes]) -> Algorithm:
    """Accelerated, compressed both ways; the downlink too, if it has a threshold. FedBNLACA's paper, Algorithm 2 with AA."""
    uplink = Accelerated(TopK(1 / 64), memory=True)
    downlink = Mirrored(TopK(1 / 64), aggregation="accelerated")
    return Algorithm(LocalSGD(), uplink, AMS(), downlink, name="fed_baca").replace(**parameters)


@_recipe
def fed_prox(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAvg with a proximal term. The term pulls clients toward the server's model. Li et al., MLSys 2020, Algorithm 2."""
    return Algorithm(LocalSGD(proximal=0.01), name="fed_prox", weighting="size").replace(**parameters)


@_recipe
def fed_dyn(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAvg with dynamic regularization: local and global optima agree. Acar et al., ICLR 2021."""
    return Algorithm(FedDyn(), name="fed_dyn").replace(**parameters)


@_recipe
def fed_gate(**parameters: Unpack[Changes]) -> Algorithm:
    """Local SGD with gradient tracking. Haddadpour et al., AISTATS 2021, Algorithm 3; Option I: `--downlink repeated`."""
    return Algorithm(GradientTracking(), name="fed_gate").replace(**parameters)


@_recipe
def fed_comgate(**parameters: Unpack[Changes]) -> Algorithm:
    """FedGATE with compressed updates: quantized or, with error feedback, sparse.

    Haddadpour et al., AISTATS 2021, Algorithm 4.
    """
    uplink = Compressed(Uniform(8), granularity="layer", memory="auto")
    return Algorithm(GradientTracking(), uplink, name="fed_comgate").replace(**parameters)


@_recipe
def scaffnew(**parameters: Unpack[Changes]) -> Algorithm:
    """FedGATE with random step counts: ProxSkip. Mishchenko et al., ICML 2022, Algorithm 2."""
    return Algorithm(GradientTracking(random_steps=True), name="scaffnew").replace(**parameters)


@_recipe
def scaffold(**parameters: Unpack[Changes]) -> Algorithm:
    """Control variates, option II. Karimireddy et al., ICML 2020, Algorithm 1."""
    return Algorithm(ControlVariates(), name="scaffold").replace(**parameters)


@_recipe
def scallion(**parameters: Unpack[Changes]) -> Algorithm:
    """SCAFFOLD with one vector up. It is quantized without bias. Huang, Li and Li, ICLR 2024, Algorithm 2."""
    uplink = Compressed(QSGD(4), granularity="layer")
    return Algorithm(SCALLION(), uplink, name="scallion").replace(**parameters)


@_recipe
def scafcom(**parameters: Unpack[Changes]) -> Algorithm:
    """SCAFFOLD with local momentum. One vector is sent, compressed with bias. Huang, Li and Li, ICLR 2024, Algorithm 3."""
    uplink = Compressed(TopK(1 / 64))
    return Algorithm(SCAFCOM(), uplink, name="scafcom").replace(**parameters)


@_recipe
def fed_amd(**parameters: Unpack[Changes]) -> Algorithm:
    """Anchors renew their cached gradient; miners take steps with the mean cache. Wu et al., ICML 2023, Algorithm 1."""
    # A smaller rate than FedAvg's: with old anchors the recursion overshoots.
    return Algorithm(AnchorSampling(local_lr=0.01), name="fed_amd").replace(**parameters)


@_recipe
def bvr_l_sgd(**parameters: Unpack[Changes]) -> Algorithm:
    """Large batches, then recursive steps. The steps are local and start from the mean of the large-batch gradients.

    Murata and Suzuki, ICML 2021.
    """
    return Algorithm(BVRLSGD(), name="bvr_l_sgd").replace(**parameters)


@_recipe
def fed_page(**parameters: Unpack[Changes]) -> Algorithm:
    """A recursive gradient estimate: all clients renew it with probability p. Zhao, Li and Richtarik, 2021."""
    return Algorithm(FedPAGE(), name="fed_page").replace(**parameters)


@_recipe
def minibatch_sgd(**parameters: Unpack[Changes]) -> Algorithm:
    """One step per round. The step uses the mean gradient at the server's model."""
    return Algorithm(MinibatchSGD(), name="minibatch_sgd").replace(**parameters)


@_recipe
def ef21(**parameters: Unpack[Changes]) -> Algorithm:
    """Compressed gradient differences. A difference is a client's gradient minus a state that client and server share.

    Richtarik, Sokolov and Fatkhullin, NeurIPS 2021, Algorithm 2.
    """
    uplink = Compressed(TopK(1 / 64))
    return Algorithm(EF21(), uplink, SGD(server_lr=0.05), name="ef21").replace(**parameters)


@_recipe
def ef21_sgdm(**parameters: Unpack[Changes]) -> Algorithm:
    """EF21 with momentum. Moving averages of mini-batch gradients replace the gradients.

    Fatkhullin, Tyurin and Richtarik, NeurIPS 2023, Algorithm 1.
    """
    uplink = Compressed(TopK(1 / 64))
    return Algorithm(EF21SGDM(), uplink, SGD(server_lr=0.05), name="ef21_sgdm").replace(**parameters)


@_recipe
def ef21_p(**parameters: Unpack[Changes]) -> Algorithm:
    """EF21 up, model differences down. A difference is the model minus what clients have. Gruntkowska et al., ICML 2023."""
    uplink, downlink = Compressed(TopK(1 / 64)), Broadcast(TopK(1 / 64))
    return Algorithm(EF21(), uplink, SGD(server_lr=0.05), downlink, name="ef21_p").replace(**parameters)


@_recipe
def ef21_bc(**parameters: Unpack[Changes]) -> Algorithm:
    """EF21 both ways: the server compresses the change of its estimate. Fatkhullin et al., 2021, Algorithm 5."""
    uplink, downlink = Compressed(TopK(1 / 64)), Estimated(TopK(1 / 64))
    return Algorithm(EF21(), uplink, SGD(server_lr=0.05), downlink, name="ef21_bc").replace(**parameters)


@_recipe
def diana(**parameters: Unpack[Changes]) -> Algorithm:
    """Quantized differences from a shift. A client sends its gradient minus a shift that both sides know, without bias.

    Mishchenko et al., 2019, Algorithm 1.
    """
    uplink = Compressed(QSGD(4), granularity="layer")
    return Algorithm(DIANA(), uplink, SGD(server_lr=0.05), name="diana").replace(**parameters)


@_recipe
def vr_diana(**parameters: Unpack[Changes]) -> Algorithm:
    """DIANA with variance reduction. It works on small batches. Horvath et al., 2019, Algorithm 2, variant L-SVRG."""
    uplink = Compressed(QSGD(4), granularity="layer")
    return Algorithm(VRDIANA(), uplink, SGD(server_lr=0.05), name="vr_diana").replace(**parameters)


@_recipe
def marina(**parameters: Unpack[Changes]) -> Algorithm:
    """Compressed changes of gradients. With probability p, clients send full gradients instead.

    Gorbunov et al., ICML 2021, Algorithms 1 and 4.
    """
    uplink = Compressed(QSGD(4), granularity="layer")
    return Algorithm(MARINA(), uplink, SGD(server_lr=0.05), name="marina").replace(**parameters)


@_recipe
def fed_laconic(**parameters: Unpack[Changes]) -> Algorithm:
    """FedAvg in sparse packets both ways: few bytes to a given accuracy.

    Updates are unbiased and without memory, with the budget max(64, d / (8 n)) for n participants. A client that was absent
    for any number of rounds gets one packet, with the budget max(64, d / 40). With d < 256, d / 4 replaces 64.
    Gradients are clipped to the norm 5, which bounds the update of a client whose local steps diverge. A step is twice the
    mean update, or shorter if it is noisy. Neither the decay of the local rate nor the average depends on the run's length.
    """
    method = LocalSGD(local_lr=0.1, clip_norm=5.0, local_schedule=InverseSqrt(100))
    uplink, downlink = Compressed(Stochastic(), memory="auto"), Mirrored(DeadZone())
    optimizer = SGD(average=1 / 8, noise_limit=0.2, stretch=2.0)
    return Algorithm(method, uplink, optimizer, downlink, name="fed_laconic").replace(**parameters)


@_recipe
def fed_laconic_1(**parameters: Unpack[Changes]) -> Algorithm:
    """The first version of `fed_laconic`: FedBNLACA with heavy sign at 1/16 per layer both ways.

    A kept entry costs its position and one bit. A client that was absent for any number of rounds gets one packet. The
    parts are those of `fed_bnlaca`, with a local learning rate of 0.1. Results: docs/results.md.
    """
    uplink = Lazy(HeavySign(1 / 16), granularity="layer", memory=True)
    downlink = Mirrored(HeavySign(1 / 16), granularity="layer", threshold=0.0)
    return Algorithm(LocalSGD(local_lr=0.1), uplink, AMS(), downlink, name="fed_laconic_1").replace(**parameters)
