"""Names that clients may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from verfedsv.texts import is_unseen


def is_readable(name: str) -> bool:
    """Return whether a name is printable, without invisible characters and without spaces around it."""
    return bool(name) and name == name.strip() and name.isprintable() and not any(map(is_unseen, name))


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless these can be names of clients: at least one, all different, each readable as it is."""
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("there must be at least one client, and each needs a name")
    for name in names:
        if not is_readable(name):
            raise ValueError(
                "names of clients must be printable, without invisible characters and without spaces around them; "
                f"received {name[:60]!a}"
            )
    if len(set(names)) < len(names):
        repeated = sorted(name for name, n_times in Counter(names).items() if n_times > 1)
        raise ValueError(f"the names of the clients must differ; repeated: {', '.join(repeated)}")
