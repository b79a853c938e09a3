"""The public names of the package. `verfedsv` imports this module when one of them is first used."""

from verfedsv._version import __version__
from verfedsv.completion import Completion, CompletionReport, complete, epsilon_rank, rank_bound
from verfedsv.errors import (
    CompletionWarning,
    DeviceWarning,
    InputError,
    ToleranceWarning,
    TooManyClientsError,
    TranscriptError,
    TranscriptWarning,
    VerfedsvError,
)
from verfedsv.loss_checks import check_loss
from verfedsv.losses import CubicForm, Loss
from verfedsv.shapley import Beta, Method, Progress, RoundGame, Semivalue, ShapleyResult, shapley_values
from verfedsv.transcript import Recorder, Transcript
from verfedsv.valuation import Valuation, value

__all__ = [
    "Beta",
    "Completion",
    "CompletionReport",
    "CompletionWarning",
    "CubicForm",
    "DeviceWarning",
    "InputError",
    "Loss",
    "Method",
    "Progress",
    "Recorder",
    "RoundGame",
    "Semivalue",
    "ShapleyResult",
    "ToleranceWarning",
    "TooManyClientsError",
    "Transcript",
    "TranscriptError",
    "TranscriptWarning",
    "Valuation",
    "VerfedsvError",
    "__version__",
    "check_loss",
    "complete",
    "epsilon_rank",
    "rank_bound",
    "shapley_values",
    "value",
]
