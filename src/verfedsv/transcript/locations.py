"""Where a transcript may lie: a folder, or an object store; and what errors of such stores mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from verfedsv.errors import InputError, TranscriptError
from verfedsv.texts import shortened

_SCHEMES = ("s3", "gs", "gcs")
_KEYS = "the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws"
_WHY = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "ACCESS_DENIED": f"access is denied; keys are taken from {_KEYS}",
    "INVALID_ACCESS_KEY_ID": f"the store does not know the access key; keys are taken from {_KEYS}",
    "SIGNATURE_DOES_NOT_MATCH": f"the secret key is not that of the access key; keys are taken from {_KEYS}",
    "NETWORK_CONNECTION": "the store cannot be reached; check the network, and endpoint_override if the URI has it",
}
"""What errors of the AWS SDK mean."""


def as_location(path: str | os.PathLike[str]) -> Path | str:
    """Return the path of a folder, also of a file:// URI, or the URI of an object store.

    Raises InputError, without showing it, if a URI is of another kind or holds keys, which would end up in logs.
    """
    if not isinstance(path, str) or "://" not in path:
        return Path(path)
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.scheme not in _SCHEMES:
        raise InputError(f"a transcript is in a folder, or at s3://, gs:// or file://; received {parts.scheme[:20]}://")
    if ":" in parts.netloc or "@" in parts.netloc.removeprefix("anonymous@"):
        raise InputError(f"the URI of a transcript must not hold keys; put them into {_KEYS}")
    return path


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turn errors of pyarrow, which are long and may hold more than the user should see, into TranscriptError."""
    try:
        yield
    except FileNotFoundError:
        why = "it is missing"
    except (OSError, NotImplementedError, pa.ArrowException) as error:
        code = re.search(r"AWS Error ([A-Z_]+)", str(error))
        said = shortened(str(error).partition(" (Request ID")[0].partition("\n")[0], 200)
        why = _WHY.get(code[1], said) if code else said
    else:
        return
    raise TranscriptError(f"cannot {what}: {why}")
