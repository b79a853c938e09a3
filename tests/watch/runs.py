"""Small runs that grow while they are watched."""

from __future__ import annotations

import json

import numpy as np

from verfedsv import Recorder

LABELS = [0, 1, 1, 0, 1, 0]


class GrowingRun:
    """An asynchronous run of three clients in a folder; each step adds time stamps and a line of metrics."""

    def __init__(self, folder, clients=("bank", "shop", "telco")) -> None:
        self.folder, self.clients, self.n_rounds = folder, list(clients), 0
        self._recorder = Recorder(folder / "transcript", LABELS, self.clients)
        self._rng = np.random.default_rng(0)

    def grow(self, n_rounds=1) -> None:
        """Record that many time stamps."""
        sign = 2 * np.array(LABELS) - 1
        for _ in range(n_rounds):
            self.n_rounds += 1
            time = 2.0 * self.n_rounds
            for m, name in enumerate(self.clients):
                scale = self.n_rounds / (m + 1)
                self._recorder.update(name, range(6), scale * sign + 0.1 * self._rng.normal(size=6), time=time)
            self._recorder.stamp(time=time + 1)
        line = {"n_rounds": self.n_rounds, "train_loss": 1 / self.n_rounds, "test_loss": None, "train_accuracy": 0.5}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._recorder.close()
