"""verfedsv: what each data owner of a vertical federated learning consortium contributed.

Public, and stable, is what this module offers (the names in `verfedsv.public`), and what verfedsv.data,
verfedsv.federation and verfedsv.settlement list in `__all__`. Everything else may change.
"""

# Nothing is imported here, not even typing: a command must set up Ctrl-C first, see `__main__`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from verfedsv.public import *  # noqa: F403  # its __all__ is what is public


def __getattr__(name: str) -> "Any":
    """Import the public names on first use: that takes about a second."""
    from importlib import import_module

    if not name.startswith("__") or name in ("__all__", "__version__"):
        public = import_module("verfedsv.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
