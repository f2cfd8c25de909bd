from .figure import scale_costs as scale_costs
from .palette import COLORS as COLORS
from .plot import COSTS as COSTS
from .plot import DASHES as DASHES
