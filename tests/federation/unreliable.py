"""A transport that does everything that a network may do to messages."""

import numpy as np

from verfedsv.errors import InputError
from verfedsv.federation import InProcess
from verfedsv.network.wire import answer_from_bytes, request_from_bytes, to_bytes


class Unreliable:
    """Loses requests and answers, repeats and delays them, mixes those of different clients, and carries bytes."""

    def __init__(self, clients, seed=0, loss=0.3):
        self._inner, self._rng, self._loss = InProcess(clients), np.random.default_rng(seed), loss
        self.clients, self._late = self._inner.clients, []
        self.n_lost = self.n_repeated = 0

    def exchange(self, requests, timeout=None):
        answers, self._late = self._late, []
        for index in self._rng.permutation(len(requests)):
            if requests[index].client not in self.clients:
                raise InputError(f"unknown client {requests[index].client!r}")
            if self._is_lost():
                continue
            for _ in range(1 + self._is_repeated()):
                request = request_from_bytes(to_bytes(requests[index]), requests[index].client)
                (answer,) = self._inner.exchange([request], timeout)
                answer = answer_from_bytes(to_bytes(answer), answer.client)
                if not self._is_lost():
                    answers.append(answer)
                if self._is_repeated():
                    self._late.append(answer)
        self._rng.shuffle(answers)
        return answers

    def _is_lost(self):
        self.n_lost += (is_lost := self._rng.random() < self._loss)
        return is_lost

    def _is_repeated(self):
        self.n_repeated += (is_repeated := bool(self._rng.random() < self._loss))
        return is_repeated
