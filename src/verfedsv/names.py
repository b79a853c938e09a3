"""Names that clients may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from verfedsv.texts import is_unseen


def is_readable(name: str) -> bool:
    """Return whether a name is printable, without invisible characters and surrounding spaces."""
    return bool(name) and name == name.strip() and name.isprintable() and not any(map(is_unseen, name))


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless these can be names of clients: at least one, all different, all readable."""
    if not isinstance(names, tuple | list) or not names:
        raise ValueError("at least one client is needed")
    for name in names:
        if not isinstance(name, str) or not is_readable(name):
            shown = ascii(name[:60] if isinstance(name, str) else name)[:62]
            raise ValueError(
                "names of clients must be printable text, not empty, without invisible characters and surrounding "
                f"spaces; received {shown}"
            )
    if len(set(names)) < len(names):
        repeated = sorted(name for name, n_times in Counter(names).items() if n_times > 1)
        raise ValueError(f"the names of the clients must differ; repeated: {', '.join(repeated)}")
