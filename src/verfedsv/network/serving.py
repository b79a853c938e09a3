"""The server's program: wait for the clients, align ids, train, value, send everyone its part.

It is a run as `verfedsv run` makes it, whose clients are on other machines. Beside the folder of the run, which
auditors may get, there is a private one (`private` in [server]) with what nobody else should have: the aligned ids, and
the key of the order of the samples.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verfedsv.arrays import Array
from verfedsv.data.sources import Matched
from verfedsv.data.tables import join_with_others
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError
from verfedsv.federation import AsynchronousSchedule, Rate, Server, Training
from verfedsv.federation.checkpoints import client_file
from verfedsv.federation.optimizers import build_optimizer
from verfedsv.federation.training import build_server
from verfedsv.files import write_whole
from verfedsv.network.absences import Absences
from verfedsv.network.beginning import begin_all, learning_of
from verfedsv.network.belonging import check_hello, check_place
from verfedsv.network.common_ids import SETTLING, CommonIds, remove_leftovers
from verfedsv.network.delivery import Delivery, files_for, signed_statement
from verfedsv.network.events import Event
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.hub import Hub, largest_answer
from verfedsv.network.label_file import LabelFile, order_key
from verfedsv.network.locking import lock_folder
from verfedsv.network.messages import End, Hello
from verfedsv.network.server_keys import admission_of, listening_at
from verfedsv.network.terms import client_of
from verfedsv.network.tls_keys import Passphrase
from verfedsv.runs import writing
from verfedsv.runs.config import Config, ServerSection
from verfedsv.runs.execute import Run, Update
from verfedsv.runs.models import build_head, weigh_classes
from verfedsv.runs.resume import Saver
from verfedsv.texts import printable, shortened

_DELIVERED = "delivered.json"


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
        if self.private.resolve().is_relative_to(self.folder.resolve()):
            raise InputError(
                f"server.private, {self.private}, must not be in the folder of the run, {self.folder}: auditors may "
                "get that one, and the private one has ids; name another, or leave private out"
            )
        self.notify: Callable[[str], None] = lambda text: None  # noqa: ARG005
        self.check: Callable[[], None] = lambda: None
        self._start, self._away = "", set[str]()
        self._samples: Any = None

    def listen_at(self, address: str | None = None, keys: Path | None = None) -> None:
        """Use another address than that of the configuration, or the certificates in a folder."""
        self.server_section = listening_at(self.server_section, address, keys)

    @cached_property
    def _labels(self) -> LabelFile:
        return LabelFile(self.config)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the clients on other machines."""
        return tuple(client.name for client in self.config.client if client.file is None)

    @property
    def private(self) -> Path:
        """The folder of what nobody else should have."""
        return self.server_section.private or Path(f"{self.folder}.private")

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

    @cached_property
    def identity(self) -> str:
        """The name of the training: clients whose folders hold the model of another one are refused."""
        return self._files.identity() or secrets.token_hex(16)

    # The connections

    def credentials(
        self, passphrase: Passphrase | None, check_insecure: Callable[[str], None] | None = None
    ) -> tuple[Callable[[bytes | None], str | None], Handshakes | None]:
        """Return who may join, and what TLS needs; without TLS, None, once the address was checked."""
        section = self.server_section
        if check_insecure is not None:
            check_insecure(section.address)
            return (lambda _: None), None
        return admission_of(section, self.config.client, passphrase)

    def open(self, admit: Callable[[bytes | None], str | None], credentials: Handshakes | None) -> int:
        """Begin to listen; return the port."""
        self._lock = lock_folder(self.private)
        remove_leftovers(self.private)
        limit = partial(largest_answer, widths={}, n_samples=0)
        who: dict[str, Any] = {"about": self._about(), "training": self.identity, "accept": self._accept}
        self.hub = Hub(self.others, admit, limit=limit, on_event=self._report, **who)
        return self.hub.start(self.server_section.address, credentials)

    def close(self, end: End) -> None:
        """Tell everybody that it is over, and why, and hang up."""
        self.hub.stop(end)
        self._lock.close()

    def gather(self, timeout: float | None, should_stop: Callable[[], bool]) -> set[str]:
        """Wait for all clients; return those that are missing.

        A training that has begun, and goes on without clients (`if_missing`), waits for `deadline` seconds, and then
        for one of them: the others catch up when they are back.
        """
        section = self.server_section
        goes_on = self.purpose == "train" and self.is_begun and section.if_missing == "continue"
        missing = self.hub.wait_for_all(self.others, section.deadline if goes_on else timeout, should_stop)
        while goes_on and missing == {*self.others} and not should_stop():
            missing = self.hub.wait_for_all(self.others, 1.0, should_stop)
        if not goes_on or should_stop():
            return missing
        self._away = missing
        for name in sorted(missing):
            self.notify(f"{name!r} is not there; the training goes on without it until it is back")
        return set()

    def _accept(self, hello: Hello) -> None:
        """Raise InputError unless a client that comes during the training still is where it was."""
        if hello.purpose != self.purpose:
            came = shortened(hello.purpose, 20)
            raise InputError(f"this server is there to {self.purpose}, and {hello.name!r} came to {came!r}")
        check_hello(hello, self.identity)
        if self._start and not self.hub.has_missed(hello.name):
            check_place(hello, self._start, self.hub.reached(hello.name))

    def _report(self, event: Event) -> None:
        self.notify(f"{event.client or 'somebody'} {event.kind}: {printable(event.text)}")

    def _about(self) -> str:
        section = self.config.training
        return f"{section.mode} training of {', '.join(client.name for client in self.config.client)}"

    def describe_own_file(self) -> str:
        """Return what the file of the labels has; raise an error if it cannot be used.

        The labels of a training that has begun are those that were trained on, and are not judged again.
        """
        return self._labels.describe() if self.is_begun else self._labels.check()

    # Alignment

    def align(
        self,
        progress: Callable[[int, int], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Find the common ids, or take those that all parties have kept; raise InputError if there are none."""
        self._common.find(progress, should_stop, is_begun=self.is_begun)

    @property
    def _common_rows(self) -> Array:
        """The rows of the label owner's file that all parties have, in their common order."""
        if self._common.aligned is None:
            raise InputError("ids have to be aligned first")
        return self._common.aligned.rows.astype(np.intp)

    @cached_property
    def _common(self) -> CommonIds:
        return CommonIds(
            self.hub,
            self._labels.owner,
            self._labels.ids,
            self.private,
            [name for name in self.others if name not in self._away],
            rule="stated" if self.config.data.aligned else "kept",
            notify=self.notify,
            check=self.check,
        )

    # The run

    @cached_property
    def data(self) -> VerticalData:
        """The labels, and the columns of the client in this process, if there is one."""
        section, rows = self.config.data, self._common_rows
        order = np.arange(len(rows))
        if not section.aligned:
            order = self._labels.order(rows, order_key(self.private, is_begun=self.is_begun))
        rows = rows[order]
        matched = Matched({self._labels.owner: rows}, 0, f"{len(rows):,} samples are common to all")
        data, known = join_with_others(
            self._labels.owner,
            self._labels.file,
            self._labels.source,
            matched,
            str(section.label),
            self.others,
            test=section.test,
            seed=section.seed,
            n_classes=section.classes,
            loss=self.config.training.loss,
        )
        self._samples = order[known].astype(np.int64)
        self._labels.forget_columns()
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
        terms = {name: learning_of(self.config, name, widths[name]) for name in data.names}
        checkpoint = self._files.checkpoints_path / client_file(0)
        local = [client_of(columns, data.is_test, terms[columns.name], checkpoint) for columns in data.clients]
        self.hub.local = {client.name: client for client in local}
        others = {name: terms[name] for name in self.others}
        samples, deadline, self._start = self._samples, self.server_section.deadline, ""
        self._start = begin_all(self.hub, data, samples, others, self.roster.n_rounds, deadline, self._away)
        absences = Absences(self.hub, self.server_section, self._files.checkpoints_path, self.notify)
        return Training(
            server,
            self.hub,
            timeout=self.server_section.deadline,
            n_tries=1,
            on_invalid=absences.refuse,
            on_missing=absences.miss,
            is_there=None if section.is_repeatable else self.hub.is_there,
            defers_steps=True,
            away=self._away,
        )

    def _rehearse(self, schedule: AsynchronousSchedule) -> None:
        """Do nothing: every client has embedded samples before it said that it can begin."""

    def _rounds(self, training: Training, begin: float) -> Iterator[int]:
        if n_rounds := training.server.n_rounds:
            self.notify(f"continuing from round {n_rounds:,} of {self.roster.n_rounds:,}")
        return super()._rounds(training, begin)

    def _bring_up_to_date(self, n_rounds: int, server: Server, saver: Saver) -> None:
        write_whole(self._files.identity_path, self.identity.encode())
        super()._bring_up_to_date(n_rounds, server, saver)

    # The end

    def finish(
        self,
        signing_key: Ed25519PrivateKey | None,
        timeout: float | None = SETTLING,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Sign a statement, if there is a key, and send every client its part; return who did not get it in time.

        A training that nothing should be paid for is not signed, as by `verfedsv statement`.

        Each gets its part as soon as it is there, and is let go. Who got what is noted in the private folder, and not
        waited for again; if nobody is left, clients that lost theirs have some seconds to ask for it.
        """
        transcript = self._files.open()
        valuation = self._files.valuation_of(transcript)
        if valuation is None:
            raise InputError(f"{self.folder} has no values yet")
        statement = signed_statement(self._files, transcript, valuation, signing_key, self.notify)
        signed = {} if statement is None else {self._files.statement_path.name: statement}
        files = partial(files_for, valuation, self._files.open(for_values=False), signed)
        version = hashlib.sha256(valuation.to_json().encode() + (statement or b"")).hexdigest()
        delivery = Delivery(self.hub, self.private / _DELIVERED, version, files, self.notify)
        return delivery.run(self.others, timeout, should_stop)
