from dataclasses import replace

import numpy as np
import pytest

from tests.settlement.runs import make_run
from tests.valuation.test_backends import factored_chunk
from verfedsv import InputError, Recorder, value
from verfedsv.completion import gpu
from verfedsv.completion.factors import CompiledSolver
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Observations
from verfedsv.settlement.audit import audit
from verfedsv.shapley.estimators import ESTIMATORS
from verfedsv.shapley.gpu import closed_form
from verfedsv.shapley.plan import Plan
from verfedsv.valuation.backends import CompiledLoops, Gpu


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_completed_rounds_have_the_values_of_the_processor(n_classes, server, monkeypatch):
    """In one part or several, over all rounds at once or some at a time."""
    chunk = factored_chunk(n_classes, 6, 0.3, server)
    chunk = replace(chunk, rounds=chunk.rounds[:4])
    plan = Plan(ESTIMATORS["closed-form"], 6, n_permutations=1)
    expected = CompiledLoops().value(chunk, plan)
    for most_samples, most_sums in ((6, 2**20), (4, 1)):
        monkeypatch.setattr(closed_form, "most_samples", lambda *_, most=most_samples: most)
        monkeypatch.setattr(closed_form, "MOST_SUMS", most_sums)
        found = Gpu().value_at_once(chunk, plan)
        size = np.abs(expected.values).max()
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-12, atol=1e-14 * size)
        np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9, atol=1e-14 * size)
        np.testing.assert_allclose(found.utility, expected.utility, rtol=1e-12, atol=1e-14 * size)
        assert (found.methods, found.n_evaluations) == (expected.methods, expected.n_evaluations)
        np.testing.assert_array_equal(found.values[:, 4], found.values[:, 0])
        assert not found.values[:, 5].any()


def uploads(n_classes, seed=0):
    """Return batches of nine samples in five rounds, one of them short, and embeddings of rank two."""
    rng = np.random.default_rng(seed)
    batches = [np.sort(rng.permutation(9)[: 1 if t == 3 else 5]).astype(np.uint32) for t in range(5)]
    samples, weights = rng.normal(size=(9, 2)), np.cumsum(rng.normal(size=(5, 2, n_classes)), axis=0)
    noise = 0.01 * rng.normal(size=(5, 9, n_classes))
    embeddings = [samples[batch] @ weights[t] + noise[t, batch] for t, batch in enumerate(batches)]
    return batches, [embedding.astype(np.float32) for embedding in embeddings]


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("uses_all", [False, True])
def test_completion_has_the_factors_of_the_processor(n_classes, uses_all):
    """And the same errors, also with a short round, which is refitted."""
    batches, embeddings = uploads(n_classes)
    pattern = Pattern.from_batches(batches, 9)
    values = pattern.sort(embeddings, n_classes, 1)
    observations = Observations.in_memory(pattern, values, 0.2, seed=0)
    arguments = observations, 0.1, 1e-3, 3, 1
    solvers = CompiledSolver(*arguments), gpu.GpuSolver(*arguments, pattern=pattern, values=values)
    begin = np.random.default_rng(1).normal(size=(5, n_classes, 2))
    expected, found = (solver.fit(begin, uses_all=uses_all, n_sweeps=3) for solver in solvers)
    np.testing.assert_allclose(found.rounds, expected.rounds, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solvers[1].solve(found), solvers[0].solve(expected), rtol=1e-9, atol=1e-12)
    for errors, other in zip(solvers[1].errors(found), solvers[0].errors(expected), strict=True):
        np.testing.assert_allclose(errors, other, rtol=1e-9)
    sizes = [solver._size(uses_all=uses_all) for solver in solvers]
    np.testing.assert_allclose(*sizes, rtol=1e-14)


def test_high_ranks_are_solved_by_the_processor(monkeypatch):
    """A block of threads has no room for the equations of a sample; here, from rank 2 on."""
    batches, embeddings = uploads(1)
    pattern = Pattern.from_batches(batches, 9)
    values = pattern.sort(embeddings, 1, 1)
    arguments = Observations.in_memory(pattern, values, 0.2, seed=0), 0.1, 1e-3, 3, 1
    monkeypatch.setattr(gpu, "SHARED_NUMBERS", 5)
    solvers = CompiledSolver(*arguments), gpu.GpuSolver(*arguments, pattern=pattern, values=values)
    begin = np.random.default_rng(1).normal(size=(5, 1, 2))
    expected, found = (solver.fit(begin, uses_all=False, n_sweeps=3) for solver in solvers)
    np.testing.assert_allclose(solvers[1].solve(found), solvers[0].solve(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # with so few uploads
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_run_has_the_values_of_the_processor(loss):
    """Completion and valuation together, with an intercept of the server."""
    n_classes = 1 if loss == "logistic" else 3
    batches, of_bank = uploads(n_classes)
    _, of_telco = uploads(n_classes, seed=2)
    labels = np.random.default_rng(0).integers(0, max(2, n_classes), 9)
    with Recorder(None, labels=labels, clients=["bank", "telco"], loss=loss) as recorder:
        for t, batch in enumerate(batches):
            both = {"bank": of_bank[t], "telco": of_telco[t][: len(batch)]}
            recorder.log(batch, {k: 0.1 * (x[:, 0] if n_classes == 1 else x) for k, x in both.items()}, offset=0.1 * t)
    options = {"rank": 1, "regularization": 0.1, "method": "closed-form"}
    expected = value(recorder, **options)
    found = value(recorder, device="cuda", **options)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-9)
    np.testing.assert_allclose(found.estimator_errors, expected.estimator_errors, rtol=1e-6)
    np.testing.assert_allclose(found.server_value, expected.server_value, rtol=1e-9)
    assert [report.fit_sweeps for report in found.completion] == [report.fit_sweeps for report in expected.completion]


def test_a_run_that_is_cut_into_pieces_is_for_processors(tmp_path):
    """A GPU that is asked for is refused."""
    batches, uploaded = uploads(1)
    with Recorder(tmp_path / "run", labels=[0, 1, 1, 0, 1, 0, 1, 0, 1], clients=["bank"]) as recorder:
        for batch, embeddings in zip(batches, uploaded, strict=True):
            recorder.log(batch, {"bank": embeddings[:, 0]})
    with pytest.raises(InputError, match="device 'cuda' is for one process: leave out executor, memory, scratch"):
        value(tmp_path / "run", device="cuda", memory="1GB")


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # with so few uploads
def test_an_audit_may_run_on_another_device(tmp_path):
    """Values of the processor are confirmed by a GPU, as by another processor."""
    settings = {"method": "closed-form", "rank": 1, "regularization": 0.1}
    folder = make_run(tmp_path / "run", valuation=settings)
    assert audit(folder, device="cuda").difference is None
