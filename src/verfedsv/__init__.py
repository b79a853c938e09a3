"""verfedsv: what each data owner of a vertical federated learning consortium contributed.

Everything named here is public and keeps its meaning, and so are the functions of verfedsv.data; all else may change.
"""

from verfedsv._version import __version__
from verfedsv.errors import InputError, ToleranceWarning, TooManyClientsError, VerfedsvError
from verfedsv.losses import CubicForm, Loss
from verfedsv.shapley import Beta, Method, Progress, RoundGame, Semivalue, ShapleyResult, shapley_values

__all__ = [
    "Beta",
    "CubicForm",
    "InputError",
    "Loss",
    "Method",
    "Progress",
    "RoundGame",
    "Semivalue",
    "ShapleyResult",
    "ToleranceWarning",
    "TooManyClientsError",
    "VerfedsvError",
    "__version__",
    "shapley_values",
]
