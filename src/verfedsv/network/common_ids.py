"""The server's end of an alignment: the ids that all parties have in common, found or kept from before."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verfedsv.alignment import (
    Aligned,
    Alignment,
    Participant,
    Party,
    align,
    aligned_checksum,
    read_aligned,
    write_aligned,
)
from verfedsv.data.ids import Ids
from verfedsv.errors import InputError, MissingClientError
from verfedsv.files import remove_unfinished
from verfedsv.network.aligning import RemoteParty, check_room
from verfedsv.network.hub import Hub, ask_one

_ALIGNED = "aligned"

_SCRATCH = ("tmp", "verfedsv-alignment-")
"""How the names of folders begin that an alignment makes for a while."""

_MOST_IDS, _MOST_TIMES = 20_000_000, 100
"""How many ids a client may have, or how many times those of the label owner, if that is more: an alignment takes 40
bytes for each on the disks of all others, whether there are as many or not."""

_SERVER_BYTES = 81
"""Bytes on the server's disk for each id of all parties: 36 of the intersection, the others those of a party."""

SETTLING = 120.0
"""Seconds that a client has for a message that is not of a round, such as a part of an alignment."""

_STEP = 1.0
"""Seconds between two checks whether to wait on."""

Rule = Literal["kept", "once", "stated"]


class CommonIds:
    """Which rows of the label owner's file, with these `ids`, all parties have, in an order that they share.

    `find` comes first; from then on `aligned` has them. By the `rule` they are kept in the private `folder`, so that a
    restart does not align again; or used once; or stated, the files being said to have them already. `notify` is told
    in words what happens; `check` is called while a client is waited for, and raises an exception to stop that.
    """

    def __init__(
        self,
        hub: Hub,
        name: str,
        ids: Ids,
        folder: Path,
        others: Iterable[str],
        *,
        rule: Rule,
        notify: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self.party = Party(name, ids, folder)
        self.aligned: Aligned | None = None
        self._hub, self._folder, self._others, self._rule = hub, folder, tuple(others), rule
        self._notify, self._check = notify, check
        self._numbers = count(1)  # of the messages of all alignments: a late answer must not fit a later question

    def find(
        self,
        progress: Callable[[int, int], None] | None,
        should_stop: Callable[[], bool],
        *,
        is_begun: bool,
    ) -> None:
        """Find the common ids, or take those that all parties have kept; raise InputError if there are none.

        What is kept for a training that has begun is not found anew. If a client goes away meanwhile, it begins again
        when all are there.
        """
        while True:
            before = self._sessions()
            try:
                self._find(progress, is_begun=is_begun)
            except (InputError, MissingClientError) as error:
                after = self._sessions()
                if after == before and {*after} >= {*self._others}:
                    raise
                self._notify(f"{error}; the alignment begins again")
                if self._hub.wait_for_all(self._others, None, should_stop):
                    return
            else:
                return

    def _sessions(self) -> dict[str, str]:
        """Return who is connected, by process: one that was restarted is another."""
        return {name: hello.session for name, hello in self._hub.connected().items()}

    def _find(self, progress: Callable[[int, int], None] | None, *, is_begun: bool) -> None:
        parties = [RemoteParty(name, self._ask_one, self._numbers) for name in self._others]
        if self._rule == "stated":
            self.aligned = self._check_aligned(parties)
        elif (kept := self._kept_by_all()) is not None:
            self.aligned = kept
            self._notify(f"{kept.n_common:,} ids were aligned before")
        elif is_begun and self._rule == "kept":
            self._refuse_another_alignment()
        else:
            self.aligned = self._align(parties, progress)
            if self._rule == "kept":
                write_aligned(self._folder / _ALIGNED, self.aligned, self.party.ids)

    def _align(self, parties: Iterable[RemoteParty], progress: Callable[[int, int], None] | None) -> Aligned:
        everybody: list[Participant] = [self.party, *parties]
        try:
            found = align(everybody, folder=self._folder, progress=progress, check_sizes=self._check_sizes)
        except OSError as error:
            self.party.close()
            raise InputError(f"ids cannot be aligned in {self._folder}: {error.strerror}") from error
        self._note(found)
        if self.party.aligned is None or not found.n_common:
            raise InputError("no id is common to all parties; are they ids of the same people, written alike?")
        return self.party.aligned

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise InputError if a client claims more ids than are believed, or the disk has no room for all of them."""
        most = max(_MOST_IDS, _MOST_TIMES * len(self.party.ids))
        for name, n_ids in sizes.items():
            if n_ids > most:
                raise InputError(f"{name!r} says that it has {n_ids:,} ids; at most {most:,} are believed")
        check_room(self._folder, sum(sizes.values()), _SERVER_BYTES)

    def _note(self, found: Alignment) -> None:
        rates = ", ".join(f"{rate:.1%} of {name}'s {found.sizes[name]:,}" for name, rate in found.rates.items())
        self._notify(f"{found.n_common:,} ids are common to all: {rates}")
        for doubt in found.doubts:
            self._notify(doubt)

    def _kept_by_all(self) -> Aligned | None:
        path = self._folder / _ALIGNED
        if self._rule != "kept" or not path.exists():
            return None
        try:
            kept = read_aligned(path, self.party.ids)
        except InputError as error:
            self._notify(f"{error}; ids are aligned again")
            return None
        said = {hello.alignment for hello in self._hub.connected().values()}
        return kept if said == {kept.checksum} else None

    def _refuse_another_alignment(self) -> None:
        """Raise InputError: samples would be in another order, and what all parties have kept would be overwritten."""
        whose = sorted({hello.alignment: name for name, hello in self._hub.connected().items()}.values())
        raise InputError(
            "the training has begun, and the ids that were aligned for it are not the same at all parties any more, "
            f"the server and {', '.join(whose)}: a folder is another, or was emptied. Let it be restored from a backup "
            f"({self._folder} here, the folder of verfedsv join at a client), or begin a new run in another output "
            "folder"
        )

    def _check_aligned(self, parties: Iterable[RemoteParty]) -> Aligned:
        """Return all rows in their order, if the checksums of all parties are the same."""
        ids, value = self.party.ids, secrets.token_bytes(32)
        own = aligned_checksum(ids.values, value)
        others = {party.name: party.check_aligned(value) for party in parties}
        if odd := [name for name, checksum in others.items() if checksum != own]:
            raise InputError(
                f"the files are said to be aligned (aligned in [data]), but the ids of {', '.join(odd)} are not those "
                f"of {self.party.name!r}, in the same order: leave aligned out, and ids are matched"
            )
        sizes = dict.fromkeys([self.party.name, *others], len(ids))
        return Aligned(np.arange(len(ids), dtype=np.uint32), value.hex(), own, sizes)

    def _ask_one(self, message: Any) -> Any:
        """Return the answer to a message; raise InputError if it is a refusal, MissingClientError if there is none."""
        end = time.monotonic() + SETTLING
        while time.monotonic() < end:
            self._check()
            with suppress(MissingClientError):
                return ask_one(self._hub, message, _STEP)
        raise MissingClientError(f"{message.client!r} did not answer within {SETTLING:g} seconds")


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed server left in its private folder: unfinished files, and those of an alignment."""
    remove_unfinished(folder)
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith(_SCRATCH):
            shutil.rmtree(path, ignore_errors=True)
