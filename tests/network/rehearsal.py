"""A consortium within one process, whose parties end and come back at chosen messages: many faults in little time.

The connections are real. A kill here leaves the files as they are at that message, but not half a write: kills of real
processes are in test_kills.py.
"""

import random
import threading
import time

from tests.network.consortium import Consortium
from tests.network.witness import account, digest, noting
from verfedsv import Transcript
from verfedsv.data.sources import ClientFile
from verfedsv.errors import InputError
from verfedsv.network.delivery import FINISHED
from verfedsv.network.link import Link
from verfedsv.network.member import Member
from verfedsv.network.messages import End
from verfedsv.network.serving import NetworkRun
from verfedsv.transcript import Upload


def _nothing(*_):
    pass


class Killed(BaseException):
    """A party ends as if it was killed."""


def leave_behind(party):
    """Keep the files of an alignment, as if the process of the party was killed."""
    if party._work is not None:
        party._work._folder._finalizer.detach()


class Party:
    """A client in a thread, which is started again whenever it is killed.

    `tap(name, message, is_done)` is called before and after each message is carried out, and may raise Killed;
    `on_killed()` is called before it comes back. A client that is refused or cannot write ends, with its `error`.
    """

    def __init__(self, whole, name, tap=_nothing, on_killed=lambda: None, port=None):
        self.whole, self.name, self.tap, self.on_killed, self.port = whole, name, tap, on_killed, port or whole.port
        self.n_killed, self.noted, self.log, self.end = 0, [], [], None
        self.error = self.first_error = None
        self.is_stopped, self.ended = False, threading.Event()
        self._start()

    def _start(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def restart(self, meanwhile=_nothing):
        """Kill the client, which waits for the server or has ended, and start it again."""
        self.is_stopped = True
        self.join(15)
        assert not self.is_alive(), self.log
        meanwhile()
        self.is_stopped, self.error = False, None
        self._start()

    def join(self, timeout):
        self._thread.join(timeout)

    def is_alive(self):
        return self._thread.is_alive()

    def _run(self):
        while not self.is_stopped:
            file = ClientFile(self.whole.folder / f"{self.name}.csv", "id", None)
            own = self.whole.folder / f"of-{self.name}"
            member = Member(self.name, file, own, aligned=self.whole.is_aligned, on_event=self.log.append)
            answer = noting(member.answer, lambda member=member: member.hello().start, self.noted.append)

            def hello(member=member):
                if self.is_stopped:
                    raise Killed
                return member.hello()

            def tapped(message, answer=answer):
                self.tap(self.name, message, False)
                result = answer(message)
                self.tap(self.name, message, True)
                return result

            try:
                while True:
                    options = {"on_event": self.log.append, "on_welcome": member.welcome}
                    link = Link(f"127.0.0.1:{self.port}", None, hello, tapped, **options)
                    self.end = link.run()
                    if self.end.is_finished:
                        member.close()
                        return
            except Killed:
                self.n_killed += 1
                leave_behind(member.party)
                self.on_killed()
            except (InputError, OSError) as error:
                self.error, self.first_error = error, self.first_error or error
                self.ended.set()
                return
            finally:
                member._lock.close()


class Rehearsal(Consortium):
    """A consortium whose server is this thread, and whose clients are others."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.parties, self.log = {}, []

    def join(self, *names, **options):
        for name in names or self.clients:
            self.parties[name] = Party(self, name, **options)

    def serve(self, tap=_nothing, timeout=5.0, signing_key=None):
        """Serve like `verfedsv serve`, once; `tap` is called with the messages of each exchange."""
        run = NetworkRun.of_file(self.config)
        run.notify = self.log.append
        resume, is_finished = run.is_begun, run.is_finished
        run.check_folder(resume=resume)
        run.open(lambda _: None, None)
        self.hub, exchange = run.hub, run.hub.exchange
        self.hub_exchange = exchange

        def tapped(requests, timeout=None):
            tap(requests)
            return exchange(requests, timeout)

        run.hub.exchange = tapped
        end = None
        try:
            if not is_finished:
                missing = run.gather(20, lambda: any(party.error for party in self.parties.values()))
                assert not missing, (missing, self.log, {name: party.log for name, party in self.parties.items()})
                run.align()
                for _ in run.train(resume=resume):
                    pass
                run.known_valuation() or run.value()
            missed = run.finish(signing_key, timeout)
            end = FINISHED
        except Killed:
            leave_behind(run._common.party)
            raise
        except Exception as error:
            end = End("", 0, 0, str(error), is_finished=False)
            raise
        finally:
            run.hub.stop(end, 1.0 if end else 0.0)
            run._lock.close()
        return missed

    def serve_again(self, tap):
        """Serve, again after each kill; return how often it was killed."""
        n_killed = 0
        while True:
            try:
                missed = self.serve(tap)
                assert not missed, (self.log[-6:], [party.log[-4:] for party in self.parties.values()])
            except Killed:
                n_killed += 1
            else:
                return n_killed

    def wait_for_parties(self):
        for party in self.parties.values():
            party.join(20)
            assert not party.is_alive(), party.log

    def check_uploads(self, *, is_repeated):
        """Check that no completed upload is lost, and none was recorded that was not sent.

        Unless the training was repeated from checkpoints, each is recorded at most as often as it was sent.
        """
        for name, party in self.parties.items():
            check_uploads(self.run, name, party.noted, is_repeated=is_repeated)


def check_uploads(run, name, noted, *, is_repeated):
    """See `Rehearsal.check_uploads`."""
    sent, completed = account(noted)
    uploads = [
        record for record in Transcript.open(run).records() if isinstance(record, Upload) and record.client == name
    ]
    marks = [digest(record.samples, record.embeddings) for record in uploads]
    recorded = {mark: marks.count(mark) for mark in marks}
    assert recorded
    if is_repeated:
        assert {*completed} <= {*recorded} <= {*sent}
    else:
        assert all(completed[mark] <= recorded.get(mark, 0) for mark in completed)
        assert all(recorded[mark] <= sent[mark] for mark in recorded)


class RandomKills:
    """Kills whoever asks, at random, until a number of kills is used up."""

    def __init__(self, n_kills, chance, seed):
        self.left, self._chance, self._rng, self._lock = n_kills, chance, random.Random(seed), threading.Lock()  # noqa: S311

    def __call__(self, *_):
        with self._lock:
            if self.left and self._rng.random() < self._chance:
                self.left -= 1
                raise Killed


def wait_until(is_so, timeout=20):
    end = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
