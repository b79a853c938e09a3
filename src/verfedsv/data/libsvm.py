"""LIBSVM files: in each line a label and numbered features that are not zero; no ids, no names of columns."""

from __future__ import annotations

import bz2
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from verfedsv.data.catalogue import Samples
from verfedsv.data.cautions import refuse_untrained
from verfedsv.data.labels import WrittenLabels, interpret
from verfedsv.data.targets import AskedLoss
from verfedsv.errors import DataError, InputError

ENDINGS = (".svm", ".libsvm")
MOST_FEATURES = 10**8
FEW_FEATURES, MOST_PER_NUMBER = 1 << 20, 10
"""Limits of the index of a feature, the latter two by how many numbers the files have.

Numbers are sparse, but each feature has a name, a scale and a weight: reading, preparing and saving them takes up to
520 bytes. Above the few that always fit into memory, files must therefore have numbers for a tenth of the features.
"""

LONGEST_LINE = 1 << 26
FEW_BYTES, MOST_EXPANSION = 1 << 22, 250
"""Limits of the bytes of a line, and of a decompressed file: that many, or that many times its own.

Those of the paper's data sets, in bz2, expand to 3 to 26 times their size and have lines of up to 40 KB; a gigabyte of
one letter shrinks to a kilobyte.
"""

_NUMBER = rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_LABEL, _FEATURE = re.compile(_NUMBER), re.compile(rb"(qid|[0-9]+):(?:" + _NUMBER + rb")")
_DAMAGED = (OSError, EOFError, zlib.error)
_EXPECTED = "expected are lines of a label and INDEX:NUMBER for each feature, with whole indices that increase"


@dataclass(frozen=True, eq=False)
class LibsvmRows:
    """The rows of a LIBSVM file, or of two: features, (rows, features), and labels, (rows,).

    Features are those of the first file, from the index `first` on, 0 or 1; `cautions` say which of the other are left
    out. `sizes` has the number of rows of each file.
    """

    paths: tuple[Path, ...]
    features: csr_array[Any]
    numbers: NDArray[np.float64]
    sizes: tuple[int, ...]
    first: int = 1
    cautions: tuple[str, ...] = ()

    def labels(self, rows: NDArray[np.intp]) -> WrittenLabels:
        """Return the labels of some rows, as whole numbers if all are."""
        numbers = self.numbers[rows]
        is_whole = bool((numbers == np.round(numbers)).all() and (np.abs(numbers) < 2**53).all())
        known = numbers.astype(np.int64) if is_whole else numbers
        return WrittenLabels(self.paths[0], "the file", known, np.ones(len(rows), bool))


def is_libsvm(path: Path) -> bool:
    """Return whether a path is that of a LIBSVM file, by its name, which may end in .gz or .bz2.

    >>> is_libsvm(Path("a.svm")), is_libsvm(Path("a.libsvm.bz2")), is_libsvm(Path("a.csv"))
    (True, True, False)
    """
    return path.name.lower().removesuffix(".bz2").removesuffix(".gz").endswith(ENDINGS)


def read_samples(
    path: Path, test_path: Path | None = None, *, n_classes: int | None = None, loss: AskedLoss = "auto"
) -> Samples:
    """Return the samples of a LIBSVM file, and of another with test samples; labels are as in `join_tables`."""
    for each in filter(None, (path, test_path)):
        if not is_libsvm(each):
            raise InputError(f"{each}: the name must end in {' or '.join(ENDINGS)}, perhaps with .gz or .bz2 after it")
    paths = (path,) if test_path is None else (path, test_path)
    rows = read_libsvm(paths)
    all_rows = np.arange(sum(rows.sizes))
    labels = interpret(rows.labels(all_rows), loss, n_classes)
    if n_classes is None:
        refuse_untrained(labels.values, labels.classes, all_rows >= rows.sizes[0], paths[-1])
    return Samples(
        path.name,
        rows.features,
        labels.values,
        labels.n_classes,
        sum(rows.sizes[1:]),
        labels.classes,
        (labels.note,),
        (*labels.cautions, *rows.cautions),
        rows.first,
    )


def read_libsvm(paths: Sequence[Path]) -> LibsvmRows:
    """Return the rows of LIBSVM files with the features of the first, which count from 0 if it has a feature 0.

    Otherwise a test file would decide which client has which features, and nothing can be learnt of others.
    """
    from sklearn.datasets import load_svmlight_files  # takes a second

    for path in paths:
        if not path.exists():
            raise DataError(f"there is no file {path}")
    try:
        with ExitStack() as files:
            lines = [_Lines(path, files.enter_context(_open(path))) for path in paths]
            parts = load_svmlight_files(lines, zero_based=True)
    except (ValueError, OverflowError, *_DAMAGED) as error:
        raise DataError(_explain(paths, error)) from None
    features, labels = [csr_array(x) for x in parts[::2]], parts[1::2]
    for path, x, y in zip(paths, features, labels, strict=True):
        _check(path, x, y)
    train, *others = features
    first, end = int(train.nnz > 0 and train.indices.min() > 0), _end(train)
    kept = [x[:, first:end] for x in features]
    _check_gaps(paths[0], kept)
    cautions = [
        line for path, x in zip(paths[1:], others, strict=True) for line in _left_out(path, x, paths[0], first, end)
    ]
    sizes = tuple(len(y) for y in labels)
    return LibsvmRows(tuple(paths), csr_array(vstack(kept)), np.concatenate(labels), sizes, first, tuple(cautions))


def _end(features: csr_array[Any]) -> int:
    """Return one more than the largest index of a feature."""
    return int(features.indices.max(initial=0)) + 1


def _left_out(path: Path, features: csr_array[Any], train: Path, first: int, end: int) -> Iterator[str]:
    """Yield cautions on features of a test file that are not from `first` to `end` - 1, as in the training file."""
    if _end(features) > end:
        yield (
            f"{path}: its features above {end - 1:,}, up to {_end(features) - 1:,}, are left out, as {train} has none "
            "of them. Make sure that it is the right file"
        )
    if first and features.nnz and features.indices.min() == 0:
        yield (
            f"{path}: its feature 0 is left out, as {train} has none. If only this file counts features from 0, number "
            "them from 1"
        )


class _Lines:
    """The lines of a file, for scikit-learn: it reads them with Python's float and int, for which 1_0 is 10."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self.read = path, file, file.read

    def __iter__(self) -> Iterator[bytes]:
        for line in _limited(self._path, self._file):
            if b"_" in line and b"_" in line.partition(b"#")[0]:
                raise ValueError("a line has an underscore")
            yield line


def _limited(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an open file; raise DataError if one is too long, or they expand to too many bytes."""
    n_bytes, n_lines = 0, 0
    most = max(FEW_BYTES, MOST_EXPANSION * path.stat().st_size)
    while line := file.readline(LONGEST_LINE + 1):
        n_bytes, n_lines = n_bytes + len(line), n_lines + 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{path}: line {n_lines:,} has more than {LONGEST_LINE:,} bytes, the limit of a line")
        if n_bytes > most:
            raise DataError(
                f"{path} expands to more than {most:,} bytes, {MOST_EXPANSION} times its size, as no real data do; if "
                "you trust it, decompress it first"
            )
        yield line


def _check(path: Path, features: csr_array[Any], labels: NDArray[np.float64]) -> None:
    n_rows, n_features = features.shape[0], _end(features) - 1
    if n_rows == 0:
        raise DataError(f"{path} has no rows")
    if n_features > MOST_FEATURES:
        raise DataError(f"{path} has a feature {n_features:,}; at most {MOST_FEATURES:,} are allowed")
    is_odd = ~np.isfinite(features.data)
    if is_odd.any():
        at = int(is_odd.argmax())
        row = int(np.searchsorted(features.indptr, at, side="right"))
        raise DataError(
            f"{path}: row {row} has the number {features.data[at]:g}; numbers must be finite, and a feature that is "
            "left out is zero"
        )
    if not np.isfinite(labels).all():
        row = int((~np.isfinite(labels)).argmax())
        raise DataError(f"{path}: row {row + 1} has the label {labels[row]:g}; labels must be finite numbers")


def _check_gaps(path: Path, features: Sequence[csr_array[Any]]) -> None:
    """Raise DataError if far more features would take memory than the files have numbers."""
    n_features, n_numbers = features[0].shape[1], sum(x.nnz for x in features)
    if n_features > max(FEW_FEATURES, MOST_PER_NUMBER * n_numbers):
        raise DataError(
            f"{path} has a feature {n_features:,} and only {n_numbers:,} numbers; above {FEW_FEATURES:,}, at "
            f"most {MOST_PER_NUMBER} features for each number in the file are allowed, as each of them takes memory: "
            "number the features without gaps"
        )


def _explain(paths: Sequence[Path], error: Exception) -> str:
    """Return what is wrong with the first file that cannot be read."""
    for path in paths:
        try:
            with _open(path) as file:
                problem = _find_problem(_limited(path, file))
        except _DAMAGED as failure:
            return f"{path} cannot be read: {failure}"
        if problem:
            return f"{path} is not in LIBSVM format: {problem}; {_EXPECTED}"
    return f"{paths[0]} is not in LIBSVM format: {error}; {_EXPECTED}"


def _open(path: Path) -> IO[bytes]:
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix.lower(), open)
    file: IO[bytes] = opener(path, "rb")
    return file


def _find_problem(lines: Iterable[bytes]) -> str:
    """Return what is wrong with the first line that is not a label and features, or nothing."""
    for number, line in enumerate(lines, 1):
        cells = line.partition(b"#")[0].split()
        if cells and not _LABEL.fullmatch(cells[0]):
            return f"line {number} begins with {_shown(cells[0])}"
        found = [_FEATURE.fullmatch(cell) for cell in cells[1:]]
        if None in found:
            return f"line {number} has {_shown(cells[1 + found.index(None)])}"
        indices = [int(match[1]) for match in found if match is not None and match[1] != b"qid"]
        if any(b <= a for a, b in pairwise(indices)):
            return f"the indices of line {number} do not increase"
        if indices and indices[-1] > MOST_FEATURES:
            return f"line {number} has a feature {indices[-1]}, and at most {MOST_FEATURES:,} are allowed"
    return ""


def _shown(cell: bytes) -> str:
    return repr(cell[:40].decode("utf-8", "replace"))
