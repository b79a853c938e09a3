"""What users pass to a `Recorder`, converted to the arrays and names that are recorded."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_array, as_numpy, as_samples, as_whole
from verfedsv.arrays import LARGEST_EMBEDDING, Array, is_usable
from verfedsv.errors import InputError
from verfedsv.loss_checks import encode_checked
from verfedsv.losses import Loss, get_loss, is_own
from verfedsv.names import check_names
from verfedsv.texts import count, doubtful_classes
from verfedsv.transcript.meaning import check_fit

_MOST_CLASSES = 1000
_FEW = 20
_TRUTH = ("False", "True")
_ADVICE = {
    "own": "Embeddings are summed, so each client uploads as many numbers per sample as the loss takes",
    "softmax": "Under softmax each client uploads its part of the logits, one number per class, not a hidden layer; if "
    "the labels do not show every class, pass n_classes to the Recorder",
    "logistic": "Under logistic loss each client uploads its part of the logit, one number per sample, not a hidden "
    "layer; for one number per class, use loss='softmax'",
}


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels as numbers, the names of their classes if they are known, and the loss.

    `n_classes` is how many numbers per sample the loss takes; None if only the first upload shows that. `are_named`
    means that the caller named the classes, rather than the labels.
    """

    numbers: Array
    classes: tuple[str, ...] | None
    loss: Loss
    n_classes: int | None
    are_named: bool = False

    @property
    def doubts(self) -> list[str]:
        """Sentences on classes that may be mistakes."""
        is_softmax = self.classes is None and self.loss.name == "softmax"
        if is_softmax and len(self.numbers) >= _FEW and self.numbers.min() == 1:
            return ["no label is 0, and classes are numbered from 0; if yours are numbered from 1, subtract 1"]
        if self.are_named or self.classes in (None, _TRUTH):
            return []
        counts = np.bincount(self.numbers, minlength=len(self.classes)).tolist()
        used = [c for c, n_samples in enumerate(counts) if n_samples]  # not categories that no sample has
        names, counts = [self.classes[c] for c in used], [counts[c] for c in used]
        return [*doubtful_classes(names, counts, "correct the labels")]

    def file(self, receives_gradient: NDArray[np.bool_]) -> bytes:
        """Return the bytes of labels.arrow."""
        numbers = self.numbers
        column = pa.array(numbers.ravel())
        if numbers.ndim == 2:
            column = pa.FixedSizeListArray.from_arrays(column, numbers.shape[1])
        table = pa.table({"label": column, "receives_gradient": pa.array(receives_gradient)})
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def find_n_classes(self, widths: Sequence[int]) -> int | None:
        """Return the number of classes that first uploads of these widths show to a loss of the user's own.

        None if there are no uploads; raise InputError if they differ, or if the loss cannot use the labels with them.
        """
        if not widths:
            return None
        if len({*widths}) > 1:
            raise InputError(f"embeddings are summed, so all have one width; received {', '.join(map(str, widths))}")
        encode_checked(self.loss, self.numbers, widths[0])
        return widths[0]

    @cached_property
    def advice(self) -> str:
        """What to upload, for a client whose embeddings cannot be summed for the loss."""
        return _ADVICE.get("own" if is_own(self.loss) else self.loss.name, _ADVICE["own"])


def as_labels(labels: ArrayLike, loss: str | Loss, n_classes: int | None, names: Sequence[str] | None = None) -> Labels:
    """Return the labels; raise InputError if the loss cannot use them, as far as known before the first upload.

    `names` are those of the classes 0, 1, ..., for labels that are numbers.
    """
    loss = get_loss(loss)
    kind = "own" if is_own(loss) else loss.name
    if n_classes is not None and kind not in ("own", "softmax"):
        raise InputError(f"n_classes is for loss 'softmax'; loss {loss.name!r} needs none")
    values = _as_rows(labels)
    is_encoded = kind != "squared" and values.ndim == 1
    values, classes = _encode(values, _order_of(labels)) if is_encoded else (values, None)
    values = _as_recorded(values)
    if names is not None:
        classes = _as_class_names(names, values, classes, kind)
    if classes is not None and kind == "logistic" and len(classes) != 2:
        shown = ", ".join(map(repr, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise InputError(f"loss 'logistic' takes labels of two classes; received {len(classes)}: {shown}")
    if n_classes is not None:
        n_classes = as_whole("n_classes", n_classes, at_least=2 if kind == "softmax" else 1)
        if classes is not None and kind == "softmax" and n_classes != len(classes):
            raise InputError(
                f"the labels name {len(classes)} classes, so n_classes cannot be {n_classes}: which number a class "
                "without samples has is unknown; pass labels as numbers, or as ordered pandas categories"
            )
    elif kind == "softmax" and names is not None and classes is not None:
        n_classes = len(classes)
    elif kind == "softmax":
        n_classes = max(2, int(values.max()) + 1) if np.isfinite(values).all() else 2
    elif values.ndim == 2 and kind != "logistic":
        n_classes = values.shape[1]
    elif kind != "own":
        n_classes = 1
    check_fit(values, loss, n_classes)
    return Labels(values, classes, loss, n_classes, are_named=names is not None)


def _as_class_names(names: Sequence[str], values: Array, found: tuple[str, ...] | None, kind: str) -> tuple[str, ...]:
    """Return the names of classes that labels are the indices of; raise InputError if they cannot be."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"classes must be a list of names; received {names!r}")
    given = tuple(names)
    if kind == "squared":
        raise InputError("classes are for labels of classes; loss 'squared' takes amounts")
    if found is not None:
        raise InputError("classes are for labels that are numbers 0, 1, ...; these name their classes themselves")
    is_index = (values >= 0) & (values < len(given)) & (values == np.floor(values))
    if not is_index.all():
        odd = values[~is_index].ravel()[0]
        raise InputError(f"classes name the labels 0 to {len(given) - 1}; received the label {odd}")
    return given


def _as_rows(labels: ArrayLike) -> Array:
    """Return labels of any type as an array, (samples,) or (samples, classes)."""
    values = as_numpy("labels", labels)
    if values.dtype.kind == "U" and not hasattr(labels, "dtype"):
        values = np.asarray(labels, dtype=object)  # otherwise a NaN among text becomes text
    if hasattr(labels, "columns") and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]  # a data frame of one column
    if values.ndim not in (1, 2) or len(values) == 0:
        raise InputError(f"labels need one row per sample, and at least one; received shape {values.shape}")
    return values


def _order_of(labels: Any) -> list[str]:
    """Return the categories of pandas labels, stripped, if these are ordered; else nothing."""
    kinds = [labels.dtype] if hasattr(labels, "dtype") else getattr(labels, "dtypes", ())
    return [str(category).strip() for kind in kinds if getattr(kind, "ordered", False) for category in kind.categories]


def _encode(values: Array, order: Sequence[str]) -> tuple[Array, tuple[str, ...] | None]:
    """Return text and booleans as numbers from 0, with the names of these classes, in the given order or sorted.

    Numbers are returned unchanged and without names, even if they are written as text.
    """
    is_object = values.dtype.kind == "O"
    kinds = {str if isinstance(value, str) else type(value) for value in values.tolist()} if is_object else set()
    if values.dtype == bool or (kinds and kinds <= {bool, np.bool_}):
        return values.astype(np.int64), _TRUTH
    if str not in kinds and values.dtype.kind not in "UT":
        return values, None
    if kinds > {str}:
        row = next(row for row, value in enumerate(values.tolist()) if not isinstance(value, str))
        raise InputError(f"labels mix text with other types, or some are missing: label {row} is {values[row]!r}")
    texts = np.char.strip(values.astype(str))
    names, numbers = np.unique(texts, return_inverse=True)
    if _are_numbers(names):
        return texts, None
    if "" in names:
        raise InputError(f"labels must not be empty; label {int(np.flatnonzero(texts == '')[0])} is")
    if len(names) > _MOST_CLASSES or len(names) > max(_FEW, len(texts) / 2):
        raise InputError(
            f"labels are text with {len(names)} different values in {len(texts)} samples, too many to be classes; "
            "pass numbers, or check that these are the labels"
        )
    if order:  # with categories that no sample has, so that the numbers are the codes of the categories
        names, numbers = np.array(order), np.array([order.index(name) for name in names])[numbers]
    if len(names) == 1:
        raise InputError(f"all labels are {str(names[0])!r}; at least two classes are needed")
    return numbers.astype(np.int64), tuple(names.tolist())


def _are_numbers(texts: Array) -> bool:
    try:
        return bool(np.isfinite(texts.astype(np.float64)).all())
    except ValueError:
        return False


def _as_recorded(labels: Array) -> Array:
    """Return labels as numbers of a type that Arrow has: in native byte order, of at most 64 bits."""
    numbers = as_array("labels", labels)
    is_long = numbers.dtype.kind == "f" and numbers.dtype.itemsize > 8
    return numbers.astype(np.float64 if is_long else numbers.dtype.newbyteorder("="), copy=False)


def as_names(clients: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the clients."""
    if isinstance(clients, str | set | frozenset) or not isinstance(clients, Iterable):
        raise InputError(f"clients must be a list of names; received {clients!r}")
    names = tuple(clients)
    try:
        check_names(names)
    except ValueError as error:
        raise InputError(str(error)) from None
    return names


def as_uploads(embeddings: Any, absent: Any, clients: tuple[str, ...]) -> dict[str, Any]:
    """Return the embeddings by client, in the order of `clients`; a client without any must be in `absent`."""
    if hasattr(embeddings, "columns") and hasattr(embeddings, "to_numpy"):
        embeddings = {name: embeddings[name] for name in embeddings.columns}  # a data frame of one column per client
    if not isinstance(embeddings, Mapping):
        raise InputError(
            f"embeddings must map the name of each client to its array; received {type(embeddings).__name__}"
        )
    if isinstance(absent, str) or not isinstance(absent, Iterable):
        raise InputError(f"absent must be a list of names of clients; received {absent!r}")
    away = list(absent)
    for name in away:
        if name in embeddings:
            raise InputError(f"client {name!r} is declared absent, but has embeddings")
        if name not in clients:
            raise InputError(f"absent has {name!r}, which does not take part; the clients are {', '.join(clients)}")
    if unknown := [name for name in embeddings if name not in clients]:
        raise InputError(
            f"embeddings are of {unknown[0]!r}, which does not take part; the clients are {', '.join(clients)}, and "
            f"recorder.join({unknown[0]!r}) adds one"
        )
    if missing := [name for name in clients if name not in embeddings and name not in away]:
        raise InputError(
            f"a synchronous round needs the embeddings of every client, and {', '.join(map(repr, missing))} "
            f"{'has' if len(missing) == 1 else 'have'} none; "
            f"if that is meant, pass absent={missing}, or use update for asynchronous training"
        )
    if not embeddings:
        raise InputError("all clients are declared absent; a round needs at least one upload")
    return {name: embeddings[name] for name in clients if name in embeddings}


def as_batches(batch: Any, clients: Sequence[str], n_samples: int) -> tuple[dict[str, NDArray[np.uint32]], bool]:
    """Return the samples of each client, and whether `batch` is one for all rather than a mapping by client."""
    if not isinstance(batch, Mapping):
        samples = as_samples("batch", batch, n_samples)
        return dict.fromkeys(clients, samples), True
    missing, unknown = [name for name in clients if name not in batch], [name for name in batch if name not in clients]
    if missing or unknown:
        raise InputError(
            "batch must have the samples of every client that uploads, and of no other: "
            f"missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    return {name: as_samples(f"batch of {name}", batch[name], n_samples) for name in clients}, False


def as_embeddings(name: str, values: ArrayLike, n_samples: int, width: int | None = None, advice: str = "") -> Array:
    """Return embeddings as (samples, width), in float32 if they fit without rounding by their type, else in float64.

    `width` None allows any. `advice` ends the message on a wrong width.
    """
    array = as_array(name, values)
    is_shaped = array.ndim in (1, 2) and len(array) == n_samples and array.size > 0
    if not is_shaped or width not in (None, array.size // n_samples):
        allowed = f"({n_samples}, {width or 'width'})"
        if width in (None, 1):
            allowed = f"({n_samples},) or {allowed}"
        message = f"{name} must have shape {allowed}, one row per sample; received {array.shape}"
        if array.ndim in (1, 2) and len(array) != n_samples:
            advice = f"The batch has {count(n_samples, 'sample')}, and these are {count(len(array), 'row')}"
        raise InputError(f"{message}. {advice}" if advice else message)
    if not is_usable(array):
        wrong = array.ravel()[int(np.argmin(np.abs(array.ravel()) < LARGEST_EMBEDDING))]
        raise InputError(f"{name} must be finite and below {LARGEST_EMBEDDING:g} in size; received {wrong:g}")
    array = array if array.ndim == 2 else array[:, np.newaxis]
    return array.astype(np.float32 if array.dtype in (np.float16, np.float32) else np.float64, copy=False)


def as_offset(values: ArrayLike, n_samples: int, n_classes: int, precision: str | None) -> Array:
    """Return an offset as (classes,) if it is the same for all samples, else as (samples, classes).

    Python numbers get the `precision` of the embeddings, as in NumPy.
    """
    array = as_array("offset", values)
    if array.ndim == 0 or array.shape == (n_classes,):
        if precision == "float32" and not hasattr(values, "dtype") and array.dtype.kind in "fiu":
            array = array.astype(np.float32)
        array = np.broadcast_to(array, (1, n_classes))
    elif array.shape != (n_samples, n_classes) and (n_classes > 1 or array.shape != (n_samples,)):
        numbers, shape = (
            ("a number", (n_samples,)) if n_classes == 1 else ("one number per class", (n_samples, n_classes))
        )
        raise InputError(f"offset must be {numbers}, or an array of shape {shape}; received shape {array.shape}")
    result = as_embeddings("offset", array, len(array))
    is_constant = bool((result == result[0]).all())
    return result[:1].ravel() if is_constant else result


def as_time(time: float) -> float:
    """Return a time as a number."""
    try:
        return float(time)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"time must be a number; received {time!r}") from None
