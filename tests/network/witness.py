"""`verfedsv` with a witness: what a client sends is noted in a file, and the wall clock may jump.

python -m tests.network.witness join ... with VERFEDSV_WITNESS=FILE and VERFEDSV_JUMPS=SEED in the environment
"""

import hashlib
import json
import os
import random
import sys
import time
from collections import Counter

import numpy as np

from verfedsv.federation.messages import Embed, Embeddings, Gradients


def digest(samples, embeddings):
    """Return a hash of an upload."""
    content = np.asarray(samples, "<i8").tobytes() + np.asarray(embeddings, "<f8").tobytes()
    return hashlib.sha256(content).hexdigest()


def noting(answer, start, write):
    """Return a function that answers like `answer`, and first writes what it sends.

    `start` returns which training a client takes part in. From Gradients a client knows that its upload is recorded.
    """

    def witnessed(message):
        result = answer(message)
        step = message.gradients if isinstance(message, Embed) else message
        if isinstance(step, Gradients):
            write(["completed", start(), message.sequence, step.round, ""])
        if isinstance(message, Embed) and isinstance(result, Embeddings):
            write(["sent", start(), message.sequence, message.round, digest(message.samples, result.embeddings)])
        return result

    return witnessed


def account(noted):
    """Return how often each upload was sent, and was known to be recorded, from what a witness wrote.

    A repeated answer to the same message is one.
    """
    sent, completed, last = {}, {}, {}
    for kind, start, sequence, round_number, mark in noted:
        if kind == "sent":
            sent[start, sequence] = mark
            last[start] = sequence, round_number, mark
        elif start in last and last[start][1] == round_number:
            completed[start, last[start][0]] = last[start][2]
    return Counter(sent.values()), Counter(completed.values())


def jump(seed):
    """Let the wall clock of this process jump by up to a day, at every look."""
    rng, real = random.Random(seed), time.time  # noqa: S311
    time.time = lambda: real() + rng.uniform(-86_400, 86_400)


def main():
    from verfedsv.network.member import Member

    if path := os.environ.get("VERFEDSV_WITNESS"):
        original = Member.answer

        def answer(self, message):
            def write(line):
                with open(path, "ab", buffering=0) as file:  # noqa: PTH123
                    file.write(json.dumps(line).encode() + b"\n")

            return noting(lambda message: original(self, message), lambda: self.hello().start, write)(message)

        Member.answer = answer
    if seed := os.environ.get("VERFEDSV_JUMPS"):
        jump(int(seed))
    from verfedsv.cli import app

    sys.argv[0] = "verfedsv"
    app()


if __name__ == "__main__":
    main()
