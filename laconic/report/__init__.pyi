from .plot import COSTS as COSTS
from .plot import STYLES as STYLES
from .plot import beside as beside
