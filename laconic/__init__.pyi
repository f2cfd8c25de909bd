from . import compression as compression, data as data, flower as flower, models as models
from .algorithms.algorithm import Algorithm as Algorithm
from .algorithms.context import RoundContext as RoundContext
from .algorithms.downlinks.dense import DenseDownlink as DenseDownlink
from .algorithms.downlinks.base import Downlink as Downlink
from .algorithms.downlinks.broadcast import Broadcast as Broadcast
from .algorithms.downlinks.compressed import CompressedDownlink as CompressedDownlink
from .algorithms.downlinks.estimated import Estimated as Estimated
from .algorithms.downlinks.mirrored import Mirrored as Mirrored
from .algorithms.downlinks.repeated import Repeated as Repeated
from .algorithms.methods.anchor_sampling import AnchorSampling as AnchorSampling
from .algorithms.methods.base import LocalMethod as LocalMethod, Method as Method, method as method
from .algorithms.methods.cohort import Cohort as Cohort
from .algorithms.methods.compressed_gradients import (
    DIANA as DIANA,
    EF21 as EF21,
    EF21SGDM as EF21SGDM,
    VRDIANA as VRDIANA,
)
from .algorithms.methods.control_variates import ControlVariates as ControlVariates
from .algorithms.methods.controlled_averaging import SCAFCOM as SCAFCOM, SCALLION as SCALLION
from .algorithms.methods.dynamic_regularization import FedDyn as FedDyn
from .algorithms.methods.exchange import (
    UPDATE as UPDATE,
    Answer as Answer,
    Exchange as Exchange,
    Phase as Phase,
    Stream as Stream,
)
from .algorithms.methods.gradient_tracking import GradientTracking as GradientTracking
from .algorithms.methods.local_sgd import LocalSGD as LocalSGD
from .algorithms.methods.minibatch_sgd import MinibatchSGD as MinibatchSGD
from .algorithms.methods.own_training import OwnTraining as OwnTraining
from .algorithms.methods.received import Received as Received
from .algorithms.methods.recursive_gradient import BVRLSGD as BVRLSGD, MARINA as MARINA, FedPAGE as FedPAGE
from .algorithms.methods.shared_state import SharedState as SharedState
from .algorithms.optimizers.adaptive import (
    AMS as AMS,
    Adagrad as Adagrad,
    Adam as Adam,
    AMSGrad as AMSGrad,
    Yogi as Yogi,
)
from .algorithms.optimizers.base import Optimizer as Optimizer
from .algorithms.optimizers.sgd import SGD as SGD
from .algorithms.recipes import (
    bvr_l_sgd as bvr_l_sgd,
    diana as diana,
    diloco as diloco,
    ef21 as ef21,
    ef21_bc as ef21_bc,
    ef21_p as ef21_p,
    ef21_sgdm as ef21_sgdm,
    fed_aa as fed_aa,
    fed_aca as fed_aca,
    fed_adagrad as fed_adagrad,
    fed_adam as fed_adam,
    fed_amd as fed_amd,
    fed_ams as fed_ams,
    fed_amsgrad as fed_amsgrad,
    fed_avg as fed_avg,
    fed_baca as fed_baca,
    fed_bnlaca as fed_bnlaca,
    fed_cams as fed_cams,
    fed_cams_two_way as fed_cams_two_way,
    fed_com as fed_com,
    fed_comgate as fed_comgate,
    fed_dyn as fed_dyn,
    fed_ef_ams as fed_ef_ams,
    fed_ef_sgd as fed_ef_sgd,
    fed_gate as fed_gate,
    fed_laconic as fed_laconic,
    fed_laconic_1 as fed_laconic_1,
    fed_nlaa as fed_nlaa,
    fed_nlaca as fed_nlaca,
    fed_page as fed_page,
    fed_paq as fed_paq,
    fed_prox as fed_prox,
    fed_sgd as fed_sgd,
    fed_yogi as fed_yogi,
    flasc as flasc,
    marina as marina,
    minibatch_sgd as minibatch_sgd,
    qsparse_local_sgd as qsparse_local_sgd,
    scafcom as scafcom,
    scaffnew as scaffnew,
    scaffold as scaffold,
    scallion as scallion,
    sparse_loco as sparse_loco,
    stc as stc,
    vr_diana as vr_diana,
)
from .algorithms.uplinks.compressed import Compressed as Compressed
from .algorithms.uplinks.dense import DenseUplink as DenseUplink
from .algorithms.uplinks.base import Encoded as Encoded, Uplink as Uplink
from .algorithms.uplinks.lag import LAG as LAG
from .algorithms.uplinks.lazy import Accelerated as Accelerated, Lazy as Lazy
from .algorithms.uplinks.shifted import Shifted as Shifted
from .api import compare as compare, simulate as simulate
from .compression import (
    QSGD as QSGD,
    Cast as Cast,
    Chain as Chain,
    Compressor as Compressor,
    Dense as Dense,
    DeadZone as DeadZone,
    Eden as Eden,
    HeavySign as HeavySign,
    Kept as Kept,
    Levels as Levels,
    Natural as Natural,
    Powers as Powers,
    RandomK as RandomK,
    Sign as Sign,
    Signs as Signs,
    Stochastic as Stochastic,
    TopK as TopK,
    Uniform as Uniform,
    Values as Values,
    compressor as compressor,
    parse_compressor as parse_compressor,
)
from .core.errors import (
    ConfigError as ConfigError,
    DataError as DataError,
    LaconicError as LaconicError,
    LaconicWarning as LaconicWarning,
    PacketError as PacketError,
    unknown_name as unknown_name,
)
from .core.layout import Layout as Layout
from .core.part import Part as Part, part as part
from .core.randomness import Randomness as Randomness
from .core.task import (
    Task as Task,
    classification as classification,
    next_token as next_token,
    regression as regression,
)
from .report.comparison import Comparison as Comparison
from .report.trackers import MLflow as MLflow, TensorBoard as TensorBoard, WandB as WandB
from .run.callbacks import (
    Callback as Callback,
    EarlyStopping as EarlyStopping,
    ProgressBar as ProgressBar,
    Run as Run,
    SaveBest as SaveBest,
)
from .run.directory import load_model as load_model
from .run.settings import Settings as Settings
from .run.simulation import Simulation as Simulation
from .run.training import Result as Result
from .version import __version__ as __version__
