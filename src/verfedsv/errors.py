"""The exceptions and warnings of this package.

    VerfedsvError
    ├── InputError (also a ValueError)      what was passed in cannot be used
    └── TooManyClientsError                 the method asked for cannot enumerate that many coalitions

    ToleranceWarning (a UserWarning)        the result is valid, its error is larger than was asked for

Every message says what was received, what is allowed, and, where there is one, what to do instead.
"""


class VerfedsvError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(VerfedsvError, ValueError):
    """An argument has a wrong shape, range, type or name."""


class TooManyClientsError(VerfedsvError):
    """Exact enumeration was asked for with more clients than can be enumerated."""


class ToleranceWarning(UserWarning):
    """The requested tolerance was not reached; the reported errors say what remains."""
