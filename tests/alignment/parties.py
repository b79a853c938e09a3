"""Parties for the tests, and participants that stand between a party and the coordinator."""

from contextlib import ExitStack, contextmanager

import pyarrow as pa

from verfedsv.alignment import Party, make_ids

CALLS = ("introduce", "begin", "own_points", "blind", "blinded", "begin_opening", "open", "collect", "finish", "agree")


@contextmanager
def parties_of(*sets, kind=Party):
    """Yield a party for each of these lists of ids, called a, b, c and so on."""
    with ExitStack() as stack:
        yield [stack.enter_context(kind(name, make_ids(ids, name))) for name, ids in zip("abcde", sets, strict=False)]


def aligned_ids(party):
    """Return the ids of a party in the common order."""
    return party.ids.values.take(pa.array(party.aligned.rows)).to_pylist()


class Between:
    """Stands between a party and the coordinator; subclasses change what passes in `call`."""

    def __init__(self, party):
        self.party, self.name = party, party.name

    def __getattr__(self, method):
        if method not in CALLS:
            raise AttributeError(method)
        return lambda *arguments: self.call(method, *arguments)

    def call(self, method, *arguments):
        return getattr(self.party, method)(*arguments)


class Recording(Between):
    """Records all calls, with their arguments and answers."""

    def __init__(self, party):
        super().__init__(party)
        self.calls = []

    def call(self, method, *arguments):
        answer = super().call(method, *arguments)
        self.calls.append((method, arguments, answer))
        return answer


class Changing(Between):
    """Changes the answer of one method."""

    def __init__(self, party, method, change):
        super().__init__(party)
        self.method, self.change = method, change

    def call(self, method, *arguments):
        answer = super().call(method, *arguments)
        return self.change(answer) if method == self.method else answer
