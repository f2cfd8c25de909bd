"""Laconic: federated learning that says little.

Every algorithm is four parts: what clients compute, how updates travel, how the server moves, how the model travels back.
Every byte that crosses the network is counted.
"""

from laconic import compression, data, models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.downlinks.base import DenseDownlink, Downlink
from laconic.algorithms.downlinks.broadcast import Broadcast
from laconic.algorithms.downlinks.mirrored import Mirrored
from laconic.algorithms.downlinks.repeated import Repeated
from laconic.algorithms.methods.anchor_sampling import AnchorSampling
from laconic.algorithms.methods.base import LocalMethod, Method
from laconic.algorithms.methods.compressed_gradients import DIANA, EF21, MinibatchSGD
from laconic.algorithms.methods.control_variates import ControlVariates
from laconic.algorithms.methods.gradient_tracking import GradientTracking
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.algorithms.methods.own_training import OwnTraining
from laconic.algorithms.methods.recursive_gradient import BVRLSGD, MARINA, FedPAGE
from laconic.algorithms.optimizers.adaptive import AMS, Adagrad, Adam, AMSGrad, Yogi
from laconic.algorithms.optimizers.base import Optimizer
from laconic.algorithms.optimizers.sgd import SGD
from laconic.algorithms.recipes import (
    bvr_l_sgd,
    diana,
    ef21,
    fed_aa,
    fed_aca,
    fed_adagrad,
    fed_adam,
    fed_amd,
    fed_ams,
    fed_amsgrad,
    fed_avg,
    fed_baca,
    fed_bnlaca,
    fed_cams,
    fed_com,
    fed_comgate,
    fed_ef_ams,
    fed_ef_sgd,
    fed_gate,
    fed_laconic,
    fed_nlaa,
    fed_nlaca,
    fed_page,
    fed_paq,
    fed_prox,
    fed_sgd,
    fed_yogi,
    marina,
    minibatch_sgd,
    scaffold,
)
from laconic.algorithms.uplinks.base import Compressed, DenseUplink, Uplink
from laconic.algorithms.uplinks.lazy import Accelerated, Lazy
from laconic.api import simulate
from laconic.compression import (
    QSGD,
    Cast,
    Chain,
    Compressor,
    Dense,
    HeavySign,
    Kept,
    Levels,
    RandomK,
    Sign,
    Signs,
    TopK,
    Uniform,
    Values,
    compressor,
    parse_compressor,
)
from laconic.core.errors import ConfigError, DataError, LaconicError, PacketError
from laconic.core.layout import Layout
from laconic.core.part import Part, part
from laconic.core.task import Task, classification, next_token, regression
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation
from laconic.run.training import Result
from laconic.version import __version__

__all__ = [
    "AMS",
    "BVRLSGD",
    "DIANA",
    "EF21",
    "MARINA",
    "QSGD",
    "SGD",
    "AMSGrad",
    "Accelerated",
    "Adagrad",
    "Adam",
    "Algorithm",
    "AnchorSampling",
    "Broadcast",
    "Cast",
    "Chain",
    "Compressed",
    "Compressor",
    "ConfigError",
    "ControlVariates",
    "DataError",
    "Dense",
    "DenseDownlink",
    "DenseUplink",
    "Downlink",
    "FedPAGE",
    "GradientTracking",
    "HeavySign",
    "Kept",
    "LaconicError",
    "Layout",
    "Lazy",
    "Levels",
    "LocalMethod",
    "LocalSGD",
    "Method",
    "MinibatchSGD",
    "Mirrored",
    "Optimizer",
    "OwnTraining",
    "PacketError",
    "Part",
    "RandomK",
    "Repeated",
    "Result",
    "Settings",
    "Sign",
    "Signs",
    "Simulation",
    "Task",
    "TopK",
    "Uniform",
    "Uplink",
    "Values",
    "Yogi",
    "__version__",
    "bvr_l_sgd",
    "classification",
    "compression",
    "compressor",
    "data",
    "diana",
    "ef21",
    "fed_aa",
    "fed_aca",
    "fed_adagrad",
    "fed_adam",
    "fed_amd",
    "fed_ams",
    "fed_amsgrad",
    "fed_avg",
    "fed_baca",
    "fed_bnlaca",
    "fed_cams",
    "fed_com",
    "fed_comgate",
    "fed_ef_ams",
    "fed_ef_sgd",
    "fed_gate",
    "fed_laconic",
    "fed_nlaa",
    "fed_nlaca",
    "fed_page",
    "fed_paq",
    "fed_prox",
    "fed_sgd",
    "fed_yogi",
    "marina",
    "minibatch_sgd",
    "models",
    "next_token",
    "parse_compressor",
    "part",
    "regression",
    "scaffold",
    "simulate",
]
