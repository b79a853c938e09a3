"""The rules of a valid transcript: records and labels must be what a `Recorder` could have written.

Every reader applies them, so that no other code has to check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from verfedsv.arrays import LARGEST_EMBEDDING, Array, is_usable
from verfedsv.errors import InputError, TranscriptError
from verfedsv.loss_checks import encode_checked
from verfedsv.losses import Loss, get_loss
from verfedsv.names import check_names
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Description
from verfedsv.transcript.format import Kind
from verfedsv.transcript.rows import Rows

_KINDS = {"upload": Kind.UPLOAD, "stamp": Kind.ROUND, "join": Kind.JOIN, "leave": Kind.LEAVE}
"""The kind of a record, by that of its last row."""


@dataclass(frozen=True)
class Roster:
    """The `clients` that took part up to some record, in the order of joining, and the `members` that still do.

    `widths` has the width of the embeddings of each client that uploaded.
    """

    clients: tuple[str, ...]
    members: frozenset[str]
    widths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_founders(cls, clients: tuple[str, ...]) -> Roster:
        """Return the roster before the first record."""
        return cls(clients, frozenset(clients))

    def joined(self, client: str) -> Roster:
        """Return the roster with one more member; raise ValueError if it is a member, or its name is not allowed."""
        if client in self.members:
            raise ValueError(f"client {client!r} takes part already")
        clients = self.clients
        if client not in clients:
            check_names([client])
            clients = (*clients, client)
        return replace(self, clients=clients, members=self.members | {client})

    def left(self, client: str) -> Roster:
        """Return the roster without a member; raise ValueError if it is not one."""
        self.check_member(client)
        return replace(self, members=self.members - {client})

    def check_member(self, client: str | None) -> None:
        """Raise ValueError unless a client takes part."""
        if client not in self.members:
            raise ValueError(f"client {client!r} {'has left' if client in self.clients else 'is unknown'}")


class Rules:
    """Checks the records of a transcript one after the other.

    `last_time` is the time of the last record: minus infinity if there is none, None if it is unknown.
    """

    def __init__(
        self, description: Description, roster: Roster | None = None, last_time: float | None = -math.inf
    ) -> None:
        self._about = description
        self._n_classes = description.n_classes or 1
        self._is_sum = description.head.kind == "sum"
        self._widths = dict(zip(description.head.clients, description.head.widths, strict=True))
        self._positions = np.empty(description.n_samples, np.uint32)  # takes memory only where it is written
        self.roster = Roster.of_founders(description.clients) if roster is None else roster
        self.last_time = last_time

    def check(self, kind: Kind, rows: Rows, where: str) -> None:
        """Raise TranscriptError, naming `where` and client, unless the rows are a valid record of that kind."""
        self.check_frame(kind, rows, where)
        try:
            self._check_numbers(rows)
        except ValueError as error:
            raise _invalid(where, error) from None

    def check_frame(self, kind: Kind, rows: Rows, where: str) -> None:
        """Check all but the numbers of uploads, which an extract lacks."""
        try:
            is_first = self.last_time == -math.inf
            self._check_kinds(kind, rows)
            self._check_times(rows)
            if kind in (Kind.JOIN, Kind.LEAVE):
                self._check_change(rows, is_first=is_first)
            elif self._about.mode == "synchronous":
                self._check_round(rows)
            else:
                self._check_one(kind, rows, is_first=is_first)
        except ValueError as error:
            raise _invalid(where, error) from None

    def check_upload(self, client: str, samples: Array, embeddings: Array, where: str) -> None:
        """Check the numbers of one upload."""
        try:
            self._check_samples(client, samples)
            _check_finite(client, embeddings)
        except ValueError as error:
            raise _invalid(where, error) from None

    def _check_times(self, rows: Rows) -> None:
        time = rows.times[0]
        if not abs(time) <= fmt.LATEST or rows.times.count(time) != len(rows):
            raise ValueError(
                f"all rows of a record must have the same time, from -1e15 to 1e15 seconds; received {rows.times[:3]}"
            )
        if self.last_time is not None and time < self.last_time:
            raise ValueError(f"time runs backwards, from {self.last_time} to {time}")
        self.last_time = time

    def _check_kinds(self, kind: Kind, rows: Rows) -> None:
        """Check that each row's kind fits its columns, and that the record's kind matches its chain entry."""
        if _KINDS.get(rows.kinds[-1] or "") is not kind:
            raise ValueError("it is not of the kind that its entry in the chain states")
        if [row for row, kind in enumerate(rows.kinds) if kind == "upload"] != rows.uploads:
            raise ValueError("every upload has a digest, and nothing else has one")
        if any((kind == "stamp") != (client is None) for kind, client in zip(rows.kinds, rows.clients, strict=True)):
            raise ValueError("every row but a time stamp has a client")

    def _check_change(self, rows: Rows, *, is_first: bool) -> None:
        """Check a join or a leave, and update the roster."""
        if len(rows) != 1 or rows.offset is not None or rows.state is not None:
            raise ValueError("joins and leaves are separate records")
        if is_first:
            raise ValueError("a transcript begins with an upload; initial clients are in its description")
        client = str(rows.clients[0])
        if self._widths and client not in self._widths:
            raise ValueError(f"client {client!r} joins, but the head has no width for it")
        self.roster = (self.roster.joined if rows.kinds[0] == "join" else self.roster.left)(client)

    def _check_round(self, rows: Rows) -> None:
        """Check a synchronous round: one row for each member, then a time stamp."""
        names = rows.clients[:-1]
        kinds = set(rows.kinds[:-1])
        if rows.kinds[-1] != "stamp" or not kinds <= {"upload", "absent"}:
            raise ValueError("a synchronous round has the uploads of its clients, and one time stamp after them")
        if len(names) != len(self.roster.members) or set(names) != self.roster.members:
            raise ValueError(self._find_wrong_member(names))
        if "upload" not in kinds:
            raise ValueError("a synchronous round needs at least one upload")
        for row, name in enumerate(names):
            if rows.kinds[row] == "upload":
                self._check_width(str(name), rows.samples.lengths[row], rows.embeddings.lengths[row])
        shared = {n for n in rows.samples.lengths if n}
        self._check_stamp(rows, {self._about.n_samples, *(shared if len(shared) == 1 else ())})

    def _find_wrong_member(self, names: list[str | None]) -> str:
        for name, times in Counter(names).items():
            self.roster.check_member(name)
            if times > 1:
                return f"client {name!r} is repeated"
        missing = next(name for name in self.roster.clients if name in self.roster.members and name not in names)
        return f"client {missing!r} is missing, and was not declared absent"

    def _check_one(self, kind: Kind, rows: Rows, *, is_first: bool) -> None:
        """Check an asynchronous record: one upload, or one time stamp."""
        if len(rows) != 1:
            raise ValueError("an asynchronous record is one upload or one time stamp")
        if kind is Kind.ROUND:
            if is_first and rows.offset is None:
                raise ValueError("a transcript begins with an upload, or with a time stamp that has an offset")
            self._check_stamp(rows, {self._about.n_samples})
            return
        (client,) = rows.clients
        self.roster.check_member(client)
        self._check_width(str(client), rows.samples.lengths[0], rows.embeddings.lengths[0])
        if rows.offset is not None or rows.state is not None:
            raise ValueError(f"client {client!r}: only a time stamp has an offset, or a state of the head")

    def _check_width(self, client: str, n_samples: int, n_numbers: int) -> None:
        """Check that an upload has the width of the client's earlier ones."""
        if n_samples == 0:
            raise ValueError(f"client {client!r}: an upload has at least one sample")
        width = self._n_classes if self._is_sum else self._widths.get(client, self.roster.widths.get(client))
        if width is None:
            width = max(1, n_numbers // n_samples)
        if n_numbers != n_samples * width:
            raise ValueError(f"client {client!r}: {n_numbers} embeddings for {n_samples} samples of width {width}")
        if self.roster.widths.get(client) != width:
            self.roster = replace(self.roster, widths={**self.roster.widths, client: width})

    def _check_stamp(self, rows: Rows, n_samples: set[int]) -> None:
        """Check a time stamp; an offset that varies has one of those numbers of samples."""
        n_states = None if rows.state is None else len(rows.state)
        if n_states != (None if self._is_sum else len(self._about.head.parameters)):
            raise ValueError("a time stamp states the head's parameters if, and only if, the head has any")
        if rows.offset is None:
            return
        if not self._is_sum:
            raise ValueError("only a head that sums has an offset")
        if len(rows.offset) not in {self._n_classes, *(n * self._n_classes for n in n_samples)}:
            raise self._wrong_offset(rows, " or ".join(map(str, sorted(n_samples))))
        if not is_usable(rows.offset):
            raise ValueError(f"the offset must be finite and below {LARGEST_EMBEDDING:g} in size")

    def _wrong_offset(self, rows: Rows, n_samples: object) -> ValueError:
        n_numbers = 0 if rows.offset is None else len(rows.offset)
        return ValueError(f"the offset has {n_numbers} numbers for {n_samples} samples of {self._n_classes} classes")

    def _check_numbers(self, rows: Rows) -> None:
        present = rows.uploads
        if not present:
            return
        first = rows.samples.row(present[0])
        self._check_samples(rows.clients[present[0]], first)
        is_shared = len(present) == 1 or (
            len(rows.samples.numbers) == len(present) * len(first)
            and bool((rows.samples.numbers.reshape(len(present), -1) == first).all())
        )
        for row in present[1:] if not is_shared else ():
            self._check_samples(rows.clients[row], rows.samples.row(row))
        n_samples = len(first) if is_shared else self._about.n_samples
        if rows.offset is not None and len(rows.offset) not in (self._n_classes, n_samples * self._n_classes):
            raise self._wrong_offset(rows, n_samples)
        if not is_usable(rows.embeddings.numbers):
            for row in present:
                _check_finite(rows.clients[row], rows.embeddings.row(row))

    def _check_samples(self, client: str | None, samples: Array) -> None:
        n_samples, indices = self._about.n_samples, samples.astype(np.intp)
        largest = int(samples.max())
        if largest >= n_samples:
            raise ValueError(f"client {client!r}: sample {largest} is not one of 0 to {n_samples - 1}")
        # A repeated sample keeps only its last position, so its first one differs. Faster than sorting.
        positions = np.arange(len(samples), dtype=np.uint32)
        self._positions[indices] = positions
        if (self._positions[indices] != positions).any():
            raise ValueError(f"client {client!r}: a sample is repeated")


def check_labels(batch: pa.RecordBatch, description: Description) -> None:
    """Raise TranscriptError unless labels.arrow has a label and a mark for each sample, and labels fit the loss.

    A loss of the user's own is not available here, so labels need only be finite.
    """
    try:
        _check_label_columns(batch, description.n_samples)
        check_fit(
            labels_of(batch), None if description.is_own_loss else get_loss(description.loss), description.n_classes
        )
    except (ValueError, InputError) as error:
        raise TranscriptError(f"{fmt.LABELS} is not valid: {error}") from None


def labels_of(batch: pa.RecordBatch) -> Array:
    """Return the labels in a record batch, (samples,) or (samples, classes)."""
    column = batch.column("label")
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.values).reshape(len(column), -1)
    return np.asarray(column)


def check_fit(labels: Array, loss: Loss | None, n_classes: int | None) -> None:
    """Raise InputError unless the loss can use the labels or, if loss or `n_classes` is None, they are finite."""
    if loss is not None and n_classes is not None:
        encode_checked(loss, labels, n_classes)
    elif labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
        raise InputError("labels must be finite numbers")


def _check_label_columns(batch: pa.RecordBatch, n_samples: int) -> None:
    if batch.schema.names != ["label", "receives_gradient"]:
        raise ValueError("its columns must be 'label' and 'receives_gradient'")
    if batch.num_rows != n_samples:
        raise ValueError(f"it has {batch.num_rows} rows for {n_samples} samples")
    label, receives = batch.columns
    kind = label.type
    numbers = label
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 0:
        kind, numbers = kind.value_type, label.values
        if len(numbers) != len(label) * label.type.list_size:
            raise ValueError("it has labels outside its rows")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"labels must be numbers; received {label.type}")
    if not pa.types.is_boolean(receives.type):
        raise ValueError(f"receives_gradient must be true or false; received {receives.type}")
    if label.null_count or numbers.null_count or receives.null_count:
        raise ValueError("label or receives_gradient contains nulls")


def _check_finite(client: str | None, embeddings: Array) -> None:
    if not is_usable(embeddings):
        raise ValueError(f"client {client!r}: embeddings must be finite and below {LARGEST_EMBEDDING:g} in size")


def _invalid(where: str, error: ValueError) -> TranscriptError:
    return TranscriptError(f"the transcript is not valid: {where}, {error}")
