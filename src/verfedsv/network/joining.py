"""A client's program from its options: certificate, features, folder, and the connection."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import grpc

from verfedsv.addresses import check_address
from verfedsv.data.sources import ClientFile
from verfedsv.errors import InputError, UnreachableError
from verfedsv.names import is_readable
from verfedsv.network.aligning import Blinding
from verfedsv.network.credentials import Credentials, read_credentials
from verfedsv.network.link import Link
from verfedsv.network.member import Member
from verfedsv.network.messages import End, Welcome
from verfedsv.network.rows_member import NewRowsMember
from verfedsv.network.tls_keys import Passphrase
from verfedsv.texts import printable


class Joining:
    """One client's part in a training, or with `predict` in predictions for the rows of that file.

    `run` takes part until the end.
    """

    def __init__(
        self,
        address: str,
        features: Path | None,
        id_column: str,
        columns: Sequence[str] | None = None,
        *,
        name: str | None = None,
        folder: Path | None = None,
        patience: float | None = None,
        predict: Path | None = None,
        aligned: bool = False,
    ) -> None:
        self._address, self._patience = dialled(address), patience
        if aligned and predict is not None:
            raise InputError("new rows are always aligned: leave out --aligned")
        if (features is None) == (predict is None):
            raise InputError("name the file of your columns with --features, or new rows with --predict")
        self._features, self._predict, self._id_column = features, predict, id_column
        self._columns = None if columns is None else tuple(columns)
        self._name, self._folder, self._is_aligned = name, folder, aligned
        self._credentials: Credentials | None = None
        self.results: list[Path] = []

    def use_certificate(
        self, certificate: Path | None, key: Path | None, authority: Path | None, passphrase: Passphrase | None
    ) -> None:
        """Use TLS; files that are not named are looked for in the current folder."""
        certificate = certificate or find_certificate(Path())
        key = key or certificate.with_suffix(".key")
        authority = authority or certificate.with_name("ca.crt")
        self._credentials = read_credentials(certificate, key, authority, "client", passphrase=passphrase)

    @property
    def name(self) -> str:
        """The name in the consortium."""
        if self._name is None and self._credentials is None:
            raise InputError("a client needs a name or a certificate")
        return self._name or (self._credentials.name if self._credentials else "")

    def run(self, say: Callable[[str], None], on_progress: Callable[[str, int, int], None]) -> End:
        """Take part until the server says that it is over; return its last message.

        `on_progress` is called after each message, with the stage, how far it is, and its whole.
        """
        folder, blinding = self._folder or default_folder(self.name), Blinding()

        def on_event(text: str) -> None:  # with what the server says, made safe to show
            say(printable(text))

        member = self._program(folder, on_event)

        def answer(message: object) -> object:
            result = member.answer(message)
            if blinding.count(message, result):
                on_progress("aligning ids", blinding.n_done, blinding.n_all)
            else:
                on_progress("training", member.n_steps, member.n_planned)
            return result

        def welcome(message: Welcome) -> None:
            member.welcome(message)
            on_event(f"connected to the {message.about}")

        channel = None
        if self._credentials is not None:
            own = self._credentials
            channel = grpc.ssl_channel_credentials(own.authorities, own.private_key, own.chain)
        link = Link(
            self._address,
            channel,
            member.hello,
            answer,  # type: ignore[arg-type]
            patience=self._patience,
            on_event=on_event,
            on_welcome=welcome,
        )
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            end = link.run()
            while not end.is_finished and isinstance(member, Member):
                if member.unusable:
                    raise InputError(member.unusable)
                on_event(f"{end.reason}; waiting for it (Ctrl-C ends this, the same command continues)")
                end = link.run()
        finally:
            signal.signal(signal.SIGTERM, before)
            member.close()
        if not end.is_finished:
            raise UnreachableError(f"no predictions: {printable(end.reason)}")
        self.results = [*member.received]
        if isinstance(member, Member) and (model := member.write_model()) is not None:
            self.results.append(model)
        return end

    def _program(self, folder: Path, on_event: Callable[[str], None]) -> Member | NewRowsMember:
        if self._predict is not None:
            return NewRowsMember(self.name, self._predict, self._id_column, folder, on_event)
        file = ClientFile(self._features or Path(), self._id_column, self._columns)
        return Member(self.name, file, folder, aligned=self._is_aligned, on_event=on_event)


def default_folder(name: str) -> Path:
    """Return where a client of this name keeps its part; raise InputError if no folder can have that name."""
    if not is_readable(name) or {*name} & {"/", "\\"}:
        raise InputError(f"no folder can be named after {name!a}; name one with --folder, or yourself with --name")
    return Path(f"verfedsv-{name}")


def dialled(address: str) -> str:
    """Return the address of a server; raise InputError if it cannot be one."""
    try:
        return check_address(address, least=1)
    except ValueError as error:
        raise InputError(f"the address of the server {error}; received {address!r}") from None


def find_certificate(folder: Path) -> Path:
    """Return the only certificate in a folder besides the authority's."""
    found = sorted(path for path in folder.glob("*.crt") if path.name != "ca.crt")
    if len(found) != 1:
        there = f"there are {', '.join(path.name for path in found)}" if found else "there is none"
        raise InputError(f"name your certificate with --certificate: {there} in this folder")
    return found[0]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
