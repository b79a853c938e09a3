"""A chunk yields the rounds of a table to which changes of every kind are applied, one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from verfedsv.losses import get_loss
from verfedsv.valuation.chunks import Change, Chunk, Round, chunks_of_rounds, together

N_CLIENTS, N_SAMPLES, N_ROUNDS = 3, 20, 30


def random_chunk(n_classes, seed, has_server=True):
    """Return a chunk whose rounds have uploads of some samples, weights for all, and nothing; and its table by round.

    Client 2 and the server change by weights of two factors and of one of ones; the others by uploads.
    """
    rng = np.random.default_rng(seed)
    n_players = N_CLIENTS + has_server
    factors = {2: rng.normal(size=(N_SAMPLES, 2)), N_CLIENTS: np.ones((N_SAMPLES, 1))}
    table = rng.normal(size=(n_players, N_SAMPLES, n_classes))
    chunk = Chunk(get_loss("squared"), np.zeros((N_SAMPLES, n_classes)), N_CLIENTS, table.copy(), [], factors)
    tables = [table.copy()]
    for _ in range(N_ROUNDS):
        changes = []
        for player in np.flatnonzero(rng.random(n_players) < 0.4).tolist():
            if player < 2:
                samples = np.sort(rng.permutation(N_SAMPLES)[: rng.integers(1, N_SAMPLES + 1)])
                values = rng.normal(size=(len(samples), n_classes))
                table[player, samples] = values
                changes.append(Change(player, samples, values))
            else:
                weights = rng.integers(0, 2, size=(n_classes, 3 - player + 1)).astype(float)
                table[player] = np.einsum("ca,na->nc", weights, factors[player])
                changes.append(Change(player, None, weights))
        chunk.rounds.append(Round(changes))
        tables.append(table.copy())
    return chunk, np.array(tables)


@pytest.mark.parametrize("only", [None, {0}, {3, 4, 17}, {29}, set(range(5, 25))])
@pytest.mark.parametrize("has_server", [True, False])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_games_are_the_tables_before_and_after(n_classes, has_server, only):
    """Of all samples that change, in all rounds or in some; what a game leaves out does not change."""
    for seed in range(5):
        chunk, tables = random_chunk(n_classes, seed, has_server)
        seen = set()
        for t, game in chunk.games(only):
            n_players = game.n_players
            seen.add(t)
            assert game.previous.flags.c_contiguous
            assert game.current.flags.c_contiguous
            moved = (tables[t] != tables[t + 1]).any(axis=(0, 2))
            uploaded = np.zeros(N_SAMPLES, bool)
            for change in chunk.rounds[t].changes:
                if change.player < N_CLIENTS:
                    uploaded[slice(None) if change.samples is None else change.samples] = True
            samples = np.flatnonzero(moved | uploaded)
            np.testing.assert_allclose(game.previous, tables[t, :n_players, samples].swapaxes(0, 1))
            np.testing.assert_allclose(game.current, tables[t + 1, :n_players, samples].swapaxes(0, 1))
            server_moved = has_server and (tables[t, -1] != tables[t + 1, -1]).any()
            assert n_players == N_CLIENTS + server_moved
            if has_server and not server_moved:
                np.testing.assert_allclose(game.offset, tables[t, -1, samples])
            else:
                assert game.offset is None
        wanted = set(range(N_ROUNDS)) if only is None else only
        assert {t for t in wanted if (tables[t] != tables[t + 1]).any()} <= seen <= wanted


def test_changes_together_leave_the_same_table():
    """What a later change of all samples overwrites is left out."""
    chunk, tables = random_chunk(2, seed=9)
    changes = together(chunk.rounds)
    assert sum(change.samples is None for change in changes) <= 2 < sum(len(r.changes) for r in chunk.rounds) / 4
    chunk.advance()
    np.testing.assert_allclose(chunk.table, tables[-1])


def test_parts_of_a_chunk_have_the_rounds_of_their_samples():
    """Labels, tables, changes and factors are cut alike."""
    chunk, tables = random_chunk(3, seed=4)
    for index, samples in enumerate((slice(0, 7), slice(7, N_SAMPLES))):
        part = chunk.part(samples, index)
        np.testing.assert_array_equal(part.table, tables[0][:, samples])
        part.advance()
        np.testing.assert_allclose(part.table, tables[-1][:, samples])
        assert (part.index, part.n_samples) == (index, samples.stop - samples.start)


def test_chunks_of_rounds_share_one_table():
    """Each begins with the table after the last round before it."""
    chunk, tables = random_chunk(2, seed=3)
    start = replace(chunk, rounds=[])
    first = [own.table.copy() for own in chunks_of_rounds(start, chunk.rounds, most_rounds=7)]
    np.testing.assert_allclose(first, tables[:-1:7])
