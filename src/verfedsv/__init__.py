"""verfedsv: what each data owner of a vertical federated learning consortium contributed.

Everything named in `verfedsv.public` is public, is found here, and keeps its meaning, and so is what verfedsv.data,
verfedsv.federation and verfedsv.settlement name; all else may change.
"""

# Nothing is imported here, not even typing: a command must first say what Ctrl-C does, see `__main__`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from verfedsv.public import *  # noqa: F403  # its __all__ is what is public


def __getattr__(name: str) -> "Any":
    """Import what is public when the first of it is asked for: that takes a second or two."""
    from importlib import import_module

    if not name.startswith("__") or name in ("__all__", "__version__"):
        public = import_module("verfedsv.public")
        globals().update({known: getattr(public, known) for known in ("__all__", *public.__all__)})
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
