"""The server's program: wait for the clients, align ids, train, value, send everyone its part.

It is a run as `verfedsv run` makes it, whose clients are on other machines. Beside the folder of the run, which
auditors may get, there is a private one (`private` in [server]) with what nobody else should have: the aligned ids.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verfedsv.alignment import Aligned, Alignment, Party, align, aligned_checksum, read_aligned, write_aligned
from verfedsv.data.sources import ClientFile, Matched, TableRows, check_column, read_source
from verfedsv.data.tables import join_with_others
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation import AsynchronousSchedule, Client, Rate, Training
from verfedsv.federation.checkpoints import client_file
from verfedsv.federation.messages import Done, Embed, Gradients, Refusal, Request, Restore
from verfedsv.federation.models import build_model
from verfedsv.federation.optimizers import build_optimizer
from verfedsv.federation.training import build_server
from verfedsv.files import remove_unfinished, write_whole
from verfedsv.network import messages as net
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.aligning import RemoteParty
from verfedsv.network.credentials import read_credentials
from verfedsv.network.delivery import Delivery, files_for
from verfedsv.network.events import Event
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.hub import Hub, ask_one, largest_answer
from verfedsv.network.locking import lock_folder
from verfedsv.network.tls_keys import Passphrase
from verfedsv.runs import writing
from verfedsv.runs.config import ClientSection, Config, ServerSection
from verfedsv.runs.execute import Run, Update
from verfedsv.runs.models import build_head, weigh_classes
from verfedsv.settlement.statement import make_statement
from verfedsv.texts import printable, shortened

_ALIGNED, _DELIVERED = "aligned", "delivered.json"
_SCRATCH = ("tmp", "verfedsv-alignment-")
"""How the names of folders begin that an alignment makes for a while."""
_MOST_IDS, _MOST_TIMES = 20_000_000, 100
"""How many ids a client may have, or how many times those of the label owner, if that is more: an alignment takes 40
bytes for each on the disks of all others, whether there are as many or not."""

SETTLING = 120.0
"""Seconds that a client has for a message that is not of a round, such as a part of an alignment."""
_STEP = 1.0
"""Seconds between two checks whether to wait on."""


class NetworkRun(Run):
    """A run whose clients dial in. `open` comes first, then `gather`; from then on it is like any other.

    `admit` says who a caller is (`Hub`), `notify` is told in words what happens; `check` is called
    while a client is waited for outside of rounds, and raises an exception to stop that.
    """

    purpose = "train"
    """What clients come for."""
    again = "the same command"

    def __init__(self, config: Config, text: str) -> None:
        super().__init__(config, text)
        if config.server is None:
            raise InputError(
                "this configuration has no [server]: its clients are all in one process. Use verfedsv run, or add "
                "[server], and leave out the files of clients on other machines"
            )
        self.server_section: ServerSection = config.server
        self.notify: Callable[[str], None] = lambda text: None  # noqa: ARG005
        self.check: Callable[[], None] = lambda: None
        self._start = ""
        self._aligned: Aligned | None = None
        self._known: Any = None
        self._numbers = count(1)  # of the messages of all alignments: a late answer must not fit a later question

    def listen_at(self, address: str | None = None, keys: Path | None = None) -> None:
        """Use another address than that of the configuration, or the certificates in a folder."""
        update: dict[str, Any] = {} if address is None else {"address": address}
        if keys is not None:
            update |= {"certificate": keys / "server.crt", "key": keys / "server.key", "authority": keys / "ca.crt"}
            revoked = keys / "revoked.crl"
            update["revoked"] = revoked if revoked.exists() else None
        self.server_section = self.server_section.model_copy(update=update)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the clients on other machines."""
        return tuple(client.name for client in self.config.client if client.file is None)

    @property
    def private(self) -> Path:
        """The folder of what nobody else should have."""
        return self.server_section.private or Path(f"{self.folder}.private")

    @property
    def says_aligned(self) -> bool:
        """Whether the files of all parties are said to have the same ids in the same order."""
        return self.config.data.aligned

    @property
    def is_begun(self) -> bool:
        """Whether there is something to continue in the folder of the run."""
        return self._files.config_path.exists() and not writing.is_free(self.folder, self._text)

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are recorded and valued, so that only results are to be delivered."""
        if not self.is_begun or self.known_valuation() is None:
            return False
        return not self._files.extent(self._files.open()).is_unfinished

    # The connections

    def credentials(
        self, passphrase: Passphrase | None, check_insecure: Callable[[str], None] | None = None
    ) -> tuple[Callable[[bytes | None], str | None], Handshakes | None]:
        """Return who may join, and what TLS needs; without TLS, None, once the address was checked."""
        section = self.server_section
        if check_insecure is not None:
            check_insecure(section.address)
            return (lambda _: None), None
        paths = {"certificate": section.certificate, "key": section.key, "authority": section.authority}
        if missing := [name for name, path in paths.items() if path is None]:
            raise InputError(f"[server] needs {', '.join(missing)}: paths of PEM files; verfedsv keys makes them")
        certificate, key, authority = (path or Path() for path in paths.values())
        own = read_credentials(certificate, key, authority, "server", passphrase=passphrase)
        allowed = {client.name: client.certificate or client.name for client in self.config.client if not client.file}
        checker = Checker(own.authorities, Allowed.of(allowed), section.revoked)
        secured = Handshakes(own.private_key, own.chain, own.authorities)
        return (lambda peer: checker.check(peer or b"")), secured

    def open(self, admit: Callable[[bytes | None], str | None], credentials: Handshakes | None) -> int:
        """Begin to listen; return the port."""
        self._lock = lock_folder(self.private)
        self._remove_leftovers()
        limit = partial(largest_answer, widths={}, n_samples=0)
        self.hub = Hub(self.others, admit, accept=self._accept, limit=limit, about=self._about(), on_event=self._report)
        return self.hub.start(self.server_section.address, credentials)

    def _remove_leftovers(self) -> None:
        """Delete what a killed server left in its private folder: unfinished files, and those of an alignment."""
        remove_unfinished(self.private)
        for path in self.private.iterdir():
            if path.is_dir() and path.name.startswith(_SCRATCH):
                shutil.rmtree(path, ignore_errors=True)

    def close(self, end: net.End) -> None:
        """Tell everybody that it is over, and why, and hang up."""
        self.hub.stop(end)
        self._lock.close()

    def gather(self, timeout: float | None, should_stop: Callable[[], bool]) -> set[str]:
        """Wait for all clients; return those that are missing."""
        return self.hub.wait_for_all(self.others, timeout, should_stop)

    def _accept(self, hello: net.Hello) -> None:
        """Raise InputError unless a client that comes during the training still is where it was."""
        if hello.purpose != self.purpose:
            came = shortened(hello.purpose, 20)
            raise InputError(f"this server is there to {self.purpose}, and {hello.name!r} came to {came!r}")
        if not self._start:
            return
        why = ""
        if hello.start != self._start:
            why = "its folder is another, or empty"
        elif hello.sequence < self.hub.reached(hello.name):
            why = "the last messages are not in its folder, as after a power failure"
        if why:
            raise InputError(
                f"{hello.name!r} has lost where it was in this training ({why}): let the server be restarted, which "
                "takes all clients back to the last checkpoint"
            )

    def _report(self, event: Event) -> None:
        self.notify(f"{event.client or 'somebody'} {event.kind}: {printable(event.text)}")

    def _about(self) -> str:
        section = self.config.training
        return f"{section.mode} training of {', '.join(client.name for client in self.config.client)}"

    def describe_own_file(self) -> str:
        """Return what the file of the labels has; raise an error if it cannot be used."""
        column = str(self.config.data.label)
        check_column(column, self._file.path, self._source.table)
        ids = self._source.ids[0]
        return f"{len(ids):,} rows in {self._file.path}, labels in column {column!r}"

    # Alignment

    def align(
        self,
        progress: Callable[[int, int], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Find the common ids, or take those that all parties have kept; raise InputError if there are none.

        If a client goes away meanwhile, it begins again when all are there.
        """
        while True:
            before = self._sessions()
            try:
                self._align(progress)
            except (InputError, MissingClientError) as error:
                after = self._sessions()
                if after == before and {*after} >= {*self.others}:
                    raise
                self.notify(f"{error}; the alignment begins again")
                if self.gather(None, should_stop):
                    return
            else:
                return

    def _sessions(self) -> dict[str, str]:
        """Return who is connected, by process: one that was restarted is another."""
        return {name: hello.session for name, hello in self.hub.connected().items()}

    def _align(self, progress: Callable[[int, int], None] | None) -> None:
        kept = None if self.says_aligned else self._kept_by_all()
        if kept is not None:
            self._aligned = kept
            self.notify(f"{kept.n_common:,} ids were aligned before")
            return
        if self.is_begun and not self.says_aligned:
            self._refuse_another_alignment()
        parties = [self._party, *self._remote_parties()]
        if self.says_aligned:
            self._aligned = self._check_aligned(parties[1:])
            return
        most = max(_MOST_IDS, _MOST_TIMES * len(self._party.ids))
        for party in parties[1:]:
            # Clients without ids are told from those that do not answer.
            if (n_ids := party.introduce().n_ids) > most:
                raise InputError(f"{party.name!r} says that it has {n_ids:,} ids; at most {most:,} are believed")
        found = align(parties, folder=self.private, progress=progress)
        self._note(found)
        if self._party.aligned is None or not found.n_common:
            raise InputError("no id is common to all parties; are they ids of the same people, written alike?")
        self._aligned = self._party.aligned
        self._keep_aligned(found)

    def _keep_aligned(self, _: Alignment) -> None:
        """Keep the common ids, so that a restart does not align again."""
        if self._aligned is not None:
            write_aligned(self.private / _ALIGNED, self._aligned, self._source.ids[0])

    def _note(self, found: Alignment) -> None:
        rates = ", ".join(f"{rate:.1%} of {name}'s {found.sizes[name]:,}" for name, rate in found.rates.items())
        self.notify(f"{found.n_common:,} ids are common to all: {rates}")
        for doubt in found.doubts:
            self.notify(doubt)

    def _kept_by_all(self) -> Aligned | None:
        path = self.private / _ALIGNED
        if not path.exists():
            return None
        try:
            kept = read_aligned(path, self._source.ids[0])
        except InputError as error:
            self.notify(f"{error}; ids are aligned again")
            return None
        said = {hello.alignment for hello in self.hub.connected().values()}
        return kept if said == {kept.checksum} else None

    def _refuse_another_alignment(self) -> None:
        """Raise InputError: samples would be in another order, and what all parties have kept would be overwritten."""
        whose = sorted({hello.alignment: name for name, hello in self.hub.connected().items()}.values())
        raise InputError(
            f"the training in {self.folder} has begun, and the ids that were aligned for it are not the same at all "
            f"parties any more, the server and {', '.join(whose)}: a folder is another, or was emptied. Let it be "
            f"restored from a backup ({self.private} here, the folder of verfedsv join at a client), or begin a new "
            "run in another output folder"
        )

    def _check_aligned(self, parties: Iterable[Any]) -> Aligned:
        """Return all rows in their order, if the checksums of all parties are the same."""
        ids, value = self._source.ids[0], secrets.token_bytes(32)
        own = aligned_checksum(ids.values, value)
        others = {party.name: party.check_aligned(value) for party in parties}
        if odd := [name for name, checksum in others.items() if checksum != own]:
            raise InputError(
                f"the files are said to be aligned (aligned in [data]), but the ids of {', '.join(odd)} are not those "
                f"of {self._holder.name!r}, in the same order: leave aligned out, and ids are matched"
            )
        sizes = dict.fromkeys([self._holder.name, *others], len(ids))
        return Aligned(np.arange(len(ids), dtype=np.uint32), value.hex(), own, sizes)

    @cached_property
    def _party(self) -> Party:
        return Party(self._holder.name, self._source.ids[0], self.private)

    def _remote_parties(self) -> list[Any]:
        return [RemoteParty(name, self._ask_one, self._numbers) for name in self.others]

    def _ask_one(self, message: Any) -> Any:
        """Return the answer to a message; raise InputError if it is a refusal, MissingClientError if there is none."""
        end = time.monotonic() + SETTLING
        while time.monotonic() < end:
            self.check()
            with suppress(MissingClientError):
                return ask_one(self.hub, message, _STEP)
        raise MissingClientError(f"{message.client!r} did not answer within {SETTLING:g} seconds")

    # The run

    @cached_property
    def _holder(self) -> ClientSection:
        return next(client for client in self.config.client if client.file is not None)

    @cached_property
    def _file(self) -> ClientFile:
        holder = self._holder
        columns = None if holder.columns is None else tuple(holder.columns)
        return ClientFile(holder.file or Path(), holder.id, columns)

    @cached_property
    def _source(self) -> TableRows:
        source = read_source(self._file, self.config.data.label)
        if not isinstance(source, TableRows):
            raise InputError(f"{self._file.path} must be CSV or Parquet, with a column of ids")
        return source

    @cached_property
    def data(self) -> VerticalData:
        """The labels, and the columns of the client in this process, if there is one."""
        if self._aligned is None:
            raise InputError("ids have to be aligned first")
        section = self.config.data
        rows = self._aligned.rows.astype(np.intp)
        matched = Matched({self._holder.name: rows}, 0, f"{len(rows):,} samples are common to all")
        data, self._known = join_with_others(
            self._holder.name,
            self._file,
            self._source,
            matched,
            str(section.label),
            self.others,
            test=section.test,
            seed=section.seed,
            n_classes=section.classes,
            loss=self.config.training.loss,
        )
        return data

    def train(self, *, resume: bool = False, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Update]:
        """Train as `Run` does; told to stop, it does not wait for clients that are away."""
        self.hub.should_stop = should_stop
        return super().train(resume=resume, should_stop=should_stop)

    def _connect(self) -> Training:
        """Return the server and its connections; all clients have begun the training."""
        data, section = self.data, self.config.training
        head = build_head(self.config, data)
        optimizer = build_optimizer(section.optimizer, section.momentum)
        server = build_server(
            data,
            rate=Rate(section.rate, section.decay),
            intercept=section.intercept,
            head=head,
            checkpoints=self._files.checkpoints_path,
            optimizer=optimizer,
            class_weights=weigh_classes(section.class_weights, data),
            members=self.roster.founders,
        )
        widths = {name: server.head.width_of(name) for name in data.names}
        self.hub.limit = partial(largest_answer, widths=widths, n_samples=len(data.labels))
        terms = {name: self._learning(name, widths[name]) for name in data.names}
        local = []
        for columns in data.clients:
            own = terms[columns.name]
            model = build_model(own.model, own.hidden, own.seed, optimizer)
            client = Client.from_columns(
                columns,
                data.is_test,
                width=own.width,
                rate=Rate(own.rate, section.decay),
                scale=own.scale,  # type: ignore[arg-type]
                model=model,
                checkpoint=self._files.checkpoints_path / client_file(0),
            )
            local.append(client)
        self.hub.local = {client.name: client for client in local}
        self._begin(terms)
        return Training(
            server,
            self.hub,
            timeout=self.server_section.deadline,
            n_tries=1,
            on_invalid=self._refuse_answer,
            on_missing=self._miss,
            is_there=None if section.is_repeatable else self.hub.is_there,
        )

    def _rehearse(self, schedule: AsynchronousSchedule) -> None:
        """Do nothing: every client has embedded samples before it said that it can begin."""

    def _begin(self, terms: dict[str, net.Learning]) -> None:
        """Let all clients on other machines begin the training with new models."""
        data, self._start = self.data, ""
        start, is_test = secrets.token_hex(16), data.is_test.astype(np.uint8)
        samples = self._known.astype(np.int64)
        requests = [
            net.Begin(name, 0, 1, start, samples, is_test, terms[name], self.roster.n_rounds) for name in self.others
        ]
        found = {answer.client: answer for answer in self.hub.exchange(requests, self.server_section.deadline)}  # type: ignore[arg-type]
        for name in self.others:
            answer = found.get(name)
            if isinstance(answer, Refusal):
                raise InputError(f"{name!r} cannot begin: {shortened(answer.reason, 1000)}")
            if not isinstance(answer, Done):
                raise MissingClientError(f"{name!r} did not begin within {self.server_section.deadline:g} seconds")
        self._start = start

    def _learning(self, name: str, width: int) -> net.Learning:
        section, model = self.config.training, self.config.model
        own = {client.name: client for client in self.config.client}.get(name) or ClientSection(name=name)
        return net.Learning(
            model.kind,
            model.hidden,
            width,
            section.seed,
            own.rate or section.rate,
            section.decay,
            section.optimizer,
            section.momentum,
            own.scale or self.config.data.used_scale,
        )

    def _refuse_answer(self, request: Request, error: InputError) -> None:
        """Log an answer that cannot be used; the client is absent from the round."""
        if isinstance(request, Restore):
            raise InputError(
                f"{request.client!r} cannot go back to round {request.round:,}, the last checkpoint: {error}\nIf its "
                f"checkpoint is lost, delete {self._files.checkpoints_path} and start the server again: all models "
                "start anew, and what was recorded is kept"
            )
        refused = f"{request.client} refused: round {request.round}: {error}"
        if self.server_section.if_missing == "stop" and isinstance(request, Embed | Gradients):
            # Repeated after a crash, the round would be another one if the client did not refuse again.
            raise MissingClientError(f"{refused}. What was recorded is kept: start the server again, and it continues")
        self.notify(refused)

    def _miss(self, request: Request) -> None:
        """Go on without a client that did not answer in time, or stop, as configured."""
        waited = (
            f"{request.client!r} did not answer in round {request.round:,} within {self.server_section.deadline:g} s"
        )
        if self.server_section.if_missing == "stop":
            raise MissingClientError(
                f"{waited}. What was recorded is kept: start the server again, and the training continues"
            )
        if self.hub.write_off(request.client):
            self.notify(f"{waited}; the training goes on without it until it is back")

    # The end

    def finish(
        self,
        signing_key: Ed25519PrivateKey | None,
        timeout: float | None = SETTLING,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Sign a statement, if there is a key, and send every client its part; return who did not get it in time.

        Each gets its part as soon as it is there, and is let go. Who got what is noted in the private folder, and not
        waited for again; if nobody is left, clients that lost theirs have some seconds to ask for it.
        """
        transcript = self._files.open()
        valuation = self._files.valuation_of(transcript)
        if valuation is None:
            raise InputError(f"{self.folder} has no values yet")
        statement = None
        path = self._files.statement_path
        if path.exists():
            statement = path.read_bytes()
        elif signing_key is not None:
            statement = make_statement(self._files, transcript, valuation, signing_key, path).to_json()
            write_whole(path, statement)
            self.notify(f"signed {path}")
        signed = {} if statement is None else {path.name: statement}
        files = partial(files_for, valuation, self._files.open(for_values=False), signed)
        version = hashlib.sha256(valuation.to_json().encode() + (statement or b"")).hexdigest()
        delivery = Delivery(self.hub, self.private / _DELIVERED, version, files, self.notify)
        return delivery.run(self.others, timeout, should_stop)
