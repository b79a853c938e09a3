"""verfedsv: what each data owner of a vertical federated learning consortium contributed.

Everything named here is public and keeps its meaning; all else may change.
"""

from verfedsv._version import __version__
from verfedsv.errors import InputError, ToleranceWarning, TooManyClientsError, VerfedsvError
from verfedsv.losses import CubicForm, Loss
from verfedsv.shapley import Beta, RoundGame, ShapleyResult, shapley_values

__all__ = [
    "Beta",
    "CubicForm",
    "InputError",
    "Loss",
    "RoundGame",
    "ShapleyResult",
    "ToleranceWarning",
    "TooManyClientsError",
    "VerfedsvError",
    "__version__",
    "shapley_values",
]
