"""Run all benchmarks and write docs/benchmarks.md."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from benchmarks import (
    accuracy,
    alignment,
    completing,
    heads,
    jump,
    limits,
    network,
    network_training,
    one_round,
    peers,
    reading,
    recording,
    scaling,
    training,
    valuing,
)
from benchmarks.measure import commit, machine, table, times

ROOT = Path(__file__).parents[1]

TEMPLATE = """# Benchmarks

Written by `make bench` on {date}, commit {commit}. Machine: {machine}.

Times are medians after a first call that compiles: a few seconds on a fresh machine, kept on disk from then on. What
matters are the ratios, all from this one run.

{ratios}

## One round

Adult, 48,842 samples, 14 clients (one per attribute), one recorded round of training. shapiq and the rows "by utility
calls" use one and the same utility: a matrix product over clients and vectorised NumPy over coalitions and samples
(`benchmarks/one_round.py`). The error is the largest over clients against the exact values. Ratios vary from run to run
and from machine to machine: with AVX-512 a call of that utility takes 0.19 or 0.28 ms, depending on where its buffers
come to lie in memory, and the closed form 0.9 to 1.2 ms; without, NumPy's exponentials take eight times as long.

{one_round}

## A hard game

The same data, 20 clients, and the whole training seen as one round: one jump from zero to the trained model. The third
order alone is not enough here, as its certified error says. `auto` keeps the tolerance of 1e-3 of the largest value;
its reported error is a bound that holds for any number of draws with 99.9 % confidence for all clients together. The
permutations are our own compiled ones; their reported error is an asymptotic 99.9 % interval of single clients, which
is less to ask, and the time to 1e-3 follows from the square root law.

{jump}

## Cost against clients and samples

![Time of the closed form against clients and against samples](images/scaling.svg)

{cost}

## Beside reading

Nothing that looks at every embedding can be faster than reading them. So the closed form, and the sum of the same
arrays by as many threads, called in turn; medians. A number is one of the two embeddings of a client and sample.

{reading}

## What bounds each step

The closed form is bound by reading, see above; the other steps by arithmetic. On one core, in turn with loops that do
nothing but the arithmetic named, on numbers in the first-level cache:

{limits}

What takes the rest, measured once by hand on one core of a quiet machine, with the data in its caches:

- **Closed form, scalar embeddings**: 0.3 ns a client and sample for each of its two passes, and 5 ns a sample for
  derivatives and bound. Reading ahead hides a part of the reading only.
- **Closed form, softmax**: 0.9 ns a client, sample and class for 7 classes or more (1.3 for 2): 0.5 for values and
  bounds, 0.2 for transposing, 0.2 for an exponential and a series for each sample and class, shared by 14 clients; 0.4
  if a step is too long for the series.
- **float32**, where 1.6 times as many samples a second were the goal: arithmetic is in float64, so that the certified
  error is that of float64. With 14 clients it takes 0.3 + 0.3 + 5/14 = 0.96 ns a client and sample, where reading its
  two embeddings takes 1.0 ns in float64 and 0.5 ns in float32. If reading and arithmetic overlapped fully, float32
  would be 1.04 times as fast, if not at all, 1.34 times; the goal is out of reach. With 200 clients arithmetic takes
  0.63 ns: 1.6 times as fast if all overlapped, 1.44 if nothing did.
- **Completed rounds**: besides completing an embedding, its change, two passes of the closed form and the bound; loads
  from the first-level cache bound it, about 20 for a vector of eight numbers.
- **`exact` and `permutation`**: loads and stores of the products, and a logarithm for up to 64 samples.
- **Softmax loss**: a logarithm and a maximum for each sample, and sums over few classes.
- **Completion**: the normal equations of the rounds, which the samples' observations are scattered over, lie in the
  second-level cache; and a solve for each sample and sweep. A sweep takes 20 ns an observation of 7 classes at rank 2,
  33 at rank 4 and 70 at rank 8; of scalars 11 at rank 3, 16 at rank 5 and 26 at rank 8.
- **Recording**: SHA-256, see below. **Training**: matrix products, as in plain SGD, see below.

## Goals

What these loops were to reach, on two machines. With AVX-512: a quiet machine, 2026-11-16
([its page](benchmarks-avx512.md)). Without: the machine of this page, which others share; ranges are of seven runs
within two hours.

| what | goal | with AVX-512 | without |
|---|---:|---:|---:|
| closed form, part of reading, 200 clients | 0.5 | 0.55 | 0.34 to 0.48 |
| closed form, part of reading, 14 clients | 0.35 | 0.38 | 0.19 to 0.37 |
| float32 against float64, samples a second, 200 clients | 1.6 | 1.2 | 1.2 to 1.5 |
| float32 against float64, samples a second, 14 clients | 1.6 | 1.1 | 0.8 to 1.1 |
| softmax against scalar embeddings, per number, 2 classes | 1.5 | 1.3 | 1.3 to 1.9 |
| softmax against scalar embeddings, per number, 7 to 105 classes | 1.5 | 1.0 | 0.6 to 1.1 |
| Covtype at full size, completed | 60 s | 63 s, before uploads were sorted by compiled loops | 90 and 92 s |
| Covtype at full size, valued | 40 s | 31 s | 57 and 68 s |
| the README's example on a new machine | 5 s | not measured as a whole; its call 3.8 s | 7 to 10 s |
| synchronous training, in multiples of plain SGD | 2 | 1.9 | 2.1 to 2.6 |

Without AVX-512 a vector has four numbers instead of eight, so that the same arithmetic takes twice as many
instructions, and it, not reading, bounds the closed form. In turn with the code of the day the goals were set, on the
machine without: with 14 clients the closed form takes 0.46 to 0.51 of the time, with 200 clients 0.36 to 0.48, softmax
0.31 to 0.32 (2 classes) and 0.25 to 0.34 (7); training takes 2.1 to 2.6 plain SGDs, as before (2.4 to 2.6). Covtype was
completed in 204 s and valued in 208 s by the code of two days before, compiling included. Loops with four lanes instead
of eight were no faster there: 40.5 and 41.0 ms with 14 clients, 21.9 and 21.0 ms with 200, 44 and 29 ms for 2 classes.

The other steps on that machine, that code and this one in turn, twice:

| what | before | now |
|---|---:|---:|
| `exact`, 14 clients | 0.37 and 0.49 s | 0.31 and 0.37 s |
| `permutation`, 14 clients, 300 permutations | 0.21 and 0.21 s | 0.18 and 0.19 s |
| `auto`, 20 clients, the whole training as one round | 1.18 and 1.16 s | 0.45 and 0.44 s |
| the README's example on a new machine | 11.5 and 9.5 s | 7.1 and 7.7 s |
| the README's example later | 4.8 and 4.5 s | 2.3 and 2.2 s |
| `import verfedsv` and its first use, with the start of Python | 1.1 and 1.1 s | 1.0 and 0.9 s |

## First call

{first_call} Compiling `exact` takes 3 s more, softmax 4 s, and the first completed training 13 s (softmax: 18 s) on a
quiet machine. On a terminal, a line says what is being waited for.

## Memory

Beyond the input, the closed form holds the labels (8 bytes a sample) and for each thread one block of at most 12,288
samples: 8 x (8 C + 5) bytes a sample for C classes, 1.3 MB for scalar embeddings. `auto` adds 40 bytes a sample if the
closed form does not suffice. `exact` adds 17 bytes a coalition. `tests/test_memory.py` holds all three to this.

{memory}

## Recording

Rounds of {clients} clients written to disk by the recorder, hash chain included, and in turn as many bytes written to
one plain file with SHA-256 over them.

{recording}

## Completion

Deviation, the paper's metric: the mean over clients of the relative difference between shares from completed embeddings
and shares from embeddings that are all known. Linear models trained with the batch sizes and learning rates of the
paper, features split between 3 clients, lambda as `auto` takes it, from 0.1 on. Web is w8a with its test part, Covtype
100,000 rows.

{deviations}

With `rank="auto"`: the true error of the values against what `value` estimates without knowing it (both of the largest
value), how many of the clients are within their error, and Proposition 2 evaluated from held-out embeddings, in
multiples of the largest value: true, and of little use. Time is that of completion and valuation together.

{errors}

Against cmfrec's alternating least squares: the same objective, lambda, rank {rank}, exact solves, double precision and
number of threads, to the same held-out error, or else its best of up to 100 sweeps. The last column starts our own
sweeps from random factors.

{others}

## Valuing a training

{valuing}

## Heads

Split learning on Adult: 4 linear clients with embeddings of width 8, a head with 64 units, {head_rounds} rounds, all
48,842 samples. The rows by extrapolation are of a tenth of the samples in one round, without completion: `permutation`
draws as many permutations as the paper.

{head_times}

Deviation and errors as under completion, with `rank="auto"`, of {head_rows:,} random rows, against all their embeddings
and all coalitions. Errors are relative to the largest value of a client; "within" counts the server as well.

{head_deviations}

## Aligning ids

Private set intersection of all parties at once, with each party in a process of its own; half of the ids of each are
common. Times of all cores are sums over the processes. The operations on the group are hashing each id to it, and a
multiplication for each id and party. Memory is what a process grows by: that of a party holds its ids, 18 bytes each.

{alignment}

## Network

Mutual TLS on the loopback address of one machine, server and each client a process. An iteration is Embed with
gradients, and Embeddings, with 2,000 samples and embeddings of one float64. The bare echo sends the same bytes over
streams of `grpc.aio`, and does nothing else; in the last row, with the gradients in an exchange of their own.
Asynchronous: each of 4 clients is asked by a thread of its own, and a step is those two messages. Ratios are medians
over blocks in turn.

{network}

{network_training}

Other frameworks with the same traffic (`benchmarks/peers`), 2,000 float64 each way. An exchange is a request to each of
4 clients and their replies; our iteration is one of them.

{peers}

## Training

{training}

## Accuracy

`verfedsv run` on a consortium, beside scikit-learn on the columns of all clients side by side, prepared in the same
way: test accuracy. All train with Adam. Linear models (rate 0.02, with an intercept) beside `LogisticRegression`, whose
C is 1 or 100, whichever does better on the test samples. The network: perceptrons of {units} units and width {width} at
the clients, {of_head} units at the server (`head = "mlp"`, rate {rate}), beside `MLPClassifier` with as many units in
as many layers, the same batches and epochs. Adult and Letter have test samples of their own; of credit and breast (two
clients each, from FATE's examples) a fifth is held out, mean over 3 and 10 seeds: one of breast's 114 test samples is
0.9 points. All settings are in `benchmarks/accuracy.py`.

{accuracy}
"""


def main() -> None:
    """Measure everything, in the order of the page."""
    print("one round")
    one_round_table, ratios = one_round.run()
    print("jump")
    jump_table, more = jump.run()
    print("scaling")
    cost, memory = scaling.run(ROOT / "docs" / "images" / "scaling.svg")
    print("reading")
    reading_table, of_reading = reading.run()
    print("limits")
    limits_table, first_call = limits.run(), limits.first_call(ROOT / "README.md")
    print("recording")
    recording_table = recording.run()
    print("completion")
    others = completing.against_others()
    deviations, errors = completing.deviations()
    print("valuation")
    valuing_text, of_runs = valuing.run()
    print("heads")
    head_times, head_deviations = heads.time_to_value(), heads.deviations()
    print("alignment")
    alignment_table = alignment.run()
    print("network")
    network_table, network_training_table, peers_table = network.run(), network_training.run(), peers.run()
    print("training")
    training_text, of_training = training.run()
    print("accuracy")
    accuracy_table = accuracy.run()
    all_ratios = {**ratios, **more, **of_reading, **of_runs, **of_training}
    page = TEMPLATE.format(
        date=dt.datetime.now(tz=dt.UTC).date(),
        commit=commit(),
        machine=machine(),
        ratios=table(
            ["what", "times"],
            [[name, times(value)] for name, value in all_ratios.items()],
        ),
        one_round=one_round_table,
        jump=jump_table,
        cost=cost,
        reading=reading_table,
        memory=memory,
        limits=limits_table,
        first_call=first_call,
        clients=recording.N_CLIENTS,
        recording=recording_table,
        deviations=deviations,
        errors=errors,
        rank=completing.RANK,
        others=others,
        valuing=valuing_text,
        head_rounds=heads.N_ROUNDS,
        head_rows=heads.N_ROWS,
        head_times=head_times,
        head_deviations=head_deviations,
        alignment=alignment_table,
        network=network_table,
        network_training=network_training_table,
        peers=peers_table,
        training=training_text,
        accuracy=accuracy_table,
        units=accuracy.UNITS,
        width=accuracy.WIDTH,
        of_head=accuracy.OF_HEAD,
        rate=accuracy.RATE,
    )
    (ROOT / "docs" / "benchmarks.md").write_text(page)


if __name__ == "__main__":
    main()
