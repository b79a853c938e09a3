"""Mutual TLS for a server, and a count of the connections that do not get through it.

gRPC refuses whoever has no valid certificate before anything of ours is called. It says nothing to the program, and
writes the reason to stderr, without an address, only if GRPC_VERBOSITY is INFO; in our commands it is NONE unless it is
set. But it asks for the server's certificate as each connection begins, and those that begin and never come to a first
call can be counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count

import grpc

_LATE = 30.0
"""Seconds from the beginning of a connection to its first call, at most; gRPC ends those that take longer."""


class Handshakes:
    """What gRPC needs for mutual TLS with a server's PEM texts, and how many connections came to nothing."""

    def __init__(
        self,
        private_key: bytes,
        chain: bytes,
        authorities: bytes,
        *,
        late: float = _LATE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pair = [(private_key, chain)]
        self._late, self._clock = late, clock
        self._numbers, self._begun = count(1), deque[tuple[float, int]](maxlen=10_000)
        self._n_due = self._n_called = self._n_told = 0
        own = grpc.ssl_server_certificate_configuration(pair, authorities)
        self.credentials = grpc.dynamic_ssl_server_credentials(
            own,
            self._begin,  # type: ignore[arg-type]  # None: the same as before
            require_client_authentication=True,
        )

    def _begin(self) -> None:
        """Count a connection that begins; gRPC calls this from threads of its own, and keeps the certificate."""
        self._begun.append((self._clock(), next(self._numbers)))

    def call(self) -> None:
        """Count a connection that came to its first call."""
        self._n_called += 1

    def ended(self) -> int:
        """Return how many connections came to nothing that were not returned before."""
        before = self._clock() - self._late
        while self._begun and self._begun[0][0] <= before:
            self._n_due = self._begun.popleft()[1]
        found = max(0, self._n_due - self._n_called - self._n_told)
        self._n_told += found
        return found
