import numpy as np
import pytest

from tests.completion.reference import PlainSolver, complete_plainly
from tests.trainings import train
from verfedsv import Completion, InputError, complete
from verfedsv.completion.complete import fit_with
from verfedsv.completion.factors import CompiledSolver, Factors
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Observations
from verfedsv.completion.start import leading_directions
from verfedsv.completion.sweeps import Observed


def low_rank(n_rounds=40, n_samples=60, n_classes=1, rank=3, batch=20, seed=0, noise=0.0):
    """Return a matrix (rounds, classes, samples) of a low rank, and batches and uploads from it."""
    rng = np.random.default_rng(seed)
    matrix = np.einsum("tcr,nr->tcn", rng.normal(size=(n_rounds, n_classes, rank)), rng.normal(size=(n_samples, rank)))
    batches = [rng.permutation(n_samples)[:batch] for _ in range(n_rounds)]
    uploads = [matrix[t][:, b].T + noise * rng.normal(size=(batch, n_classes)) for t, b in enumerate(batches)]
    return matrix, batches, uploads


def full(completion: Completion):
    """Return all embeddings, (rounds, classes, samples)."""
    return np.einsum("tcr,nr->tcn", completion.rounds, completion.samples)


def objective(matrix, factors: Factors, regularization):
    """Return what equation 2 minimises, from a matrix with NaN where nothing was uploaded."""
    residuals = matrix - np.einsum("tcr,nr->tcn", *factors)
    return np.nansum(residuals**2) + regularization * (np.sum(factors.rounds**2) + np.sum(factors.samples**2))


def solvers(training, client=0, regularization=0.1, tolerance=1e-9, max_sweeps=7, fraction=0.0, seed=0):
    """Return the compiled and the plain solver of one client's uploads."""
    pattern = Pattern.from_batches(training.batches, training.embeddings.shape[2])
    options = regularization, tolerance, max_sweeps
    plain = PlainSolver.of(pattern, training.uploads(client), *options, fraction, seed)
    return CompiledSolver(plain.observations, *options, 2), plain


@pytest.mark.parametrize("n_classes", [1, 4])
@pytest.mark.parametrize("rank", [1, 3])
def test_an_exact_low_rank_matrix_is_recovered(n_classes, rank):
    """With next to no regularisation, every missing entry comes back to 1e-6 of the largest."""
    matrix, batches, uploads = low_rank(n_classes=n_classes, rank=rank)
    result = complete(batches, uploads, 60, rank, 1e-9, tolerance=1e-10, max_sweeps=2000)
    assert np.abs(full(result) - matrix).max() < 1e-6 * np.abs(matrix).max()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_sweeps_equal_those_of_the_plain_solver(loss, rank, fraction):
    """From the same start, factors and errors are those of the plain solver, with and without held-out uploads."""
    fast, plain = solvers(train(loss, n_samples=80, batch=20, n_epochs=5), fraction=fraction, seed=3)
    start = np.random.default_rng(0).normal(size=(fast.observations.n_rounds, 3 if loss == "softmax" else 1, rank))
    ours, theirs = fast.fit(start, uses_all=False), plain.fit(start, uses_all=False)
    np.testing.assert_allclose(ours.rounds, theirs.rounds, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fast.solve(ours), plain.solve(theirs), rtol=1e-8, atol=1e-10)
    for a, b in zip(fast.errors(ours), plain.errors(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)
    assert fast.fit_sweeps == plain.fit_sweeps == [7]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_start_is_that_of_the_plain_solver(loss):
    """The leading directions of the interpolated embeddings are those of a full singular value decomposition."""
    fast, plain = solvers(train(loss, n_samples=80, batch=20, n_epochs=6), fraction=0.1)
    ours, theirs = fast.start(3), plain.start(3)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("rank", ["auto", 2])
def test_the_whole_completion_is_that_of_the_plain_one(loss, rank):
    """Rank, reported errors and completed embeddings are those of the plain reference with the same signature."""
    training = train(loss, n_samples=60, batch=20, n_epochs=5)
    arguments = training.batches, training.uploads(1), 60, rank
    ours, theirs = complete(*arguments), complete_plainly(*arguments)
    assert ours.report.rank == theirs.report.rank
    np.testing.assert_allclose(full(ours), full(theirs), atol=1e-4)
    assert ours.report.held_out_rmse == pytest.approx(theirs.report.held_out_rmse, rel=0.02)
    assert ours.report.train_largest == pytest.approx(theirs.report.train_largest, rel=0.02)


def test_the_result_minimises_equation_2():
    """At the end of many sweeps no small change of either factor lowers the objective, by numeric derivatives."""
    fast, plain = solvers(train(n_samples=30, batch=10, n_epochs=4), tolerance=1e-14, max_sweeps=5000)
    fit = fast.fit(fast.start(2), uses_all=True)
    factors = Factors(fit.rounds, fast.solve(fit))
    rng = np.random.default_rng(0)
    for k in (0, 1):
        direction = rng.normal(size=factors[k].shape)
        moved = [factors._replace(**{factors._fields[k]: factors[k] + s * direction}) for s in (1e-4, -1e-4)]
        slope = (objective(plain.matrix, moved[0], 0.1) - objective(plain.matrix, moved[1], 0.1)) / 2e-4
        assert abs(slope) < 1e-4 * np.linalg.norm(direction)


def test_no_sweep_raises_the_objective():
    """Alternating least squares only ever goes down."""
    fast, plain = solvers(train("softmax", n_samples=60, batch=20, n_epochs=4))
    fast.max_sweeps = 1
    fit = fast.fit(np.random.default_rng(0).normal(size=(12, 3, 4)), uses_all=True)
    heights = []
    for _ in range(10):
        heights.append(objective(plain.matrix, Factors(fit.rounds, fast.solve(fit)), 0.1))
        fit = fast.fit(fit.rounds, uses_all=True)
    assert (np.diff(heights) <= 1e-9 * heights[0]).all()
    assert heights[-1] < heights[0]


def test_an_uploaded_zero_is_an_observation():
    """Samples whose embeddings are exactly zero are completed as zero, and counted as seen."""
    matrix, batches, uploads = low_rank(rank=1)
    zero = np.arange(60) % 2 == 0
    for batch, values in zip(batches, uploads, strict=True):
        values[zero[batch]] = 0
    result = complete(batches, uploads, 60, 1)
    assert np.abs(full(result)[:, :, zero]).max() == 0
    assert np.abs(full(result)[:, :, ~zero] - matrix[:, :, ~zero]).max() < 0.05 * np.abs(matrix).max()
    assert result.report.n_unseen == 0
    assert result.report.n_observations == 40 * 20


def test_samples_never_uploaded_are_counted_and_stay_zero():
    """Nothing is known of them, and the report says how many there are."""
    _, batches, uploads = low_rank(n_samples=60)
    result = complete(batches, uploads, 70, 3)
    assert result.report.n_unseen == 10
    assert (result.samples[60:] == 0).all()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_number_of_threads_does_not_matter(loss):
    """One, two and five threads give the same bits."""
    training = train(loss)
    results = [complete(training.batches, training.uploads(0), 300, n_threads=n) for n in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].rounds, other.rounds)
        np.testing.assert_array_equal(results[0].samples, other.samples)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_auto_finds_the_rank(rank):
    """Of a matrix of known rank with a little noise, the rank is found, and no higher one is taken."""
    _, batches, uploads = low_rank(rank=rank, n_samples=400, batch=150, n_rounds=60, noise=0.01)
    report = complete(batches, uploads, 400).report
    assert report.rank == rank
    assert report.held_out_rmse == pytest.approx(0.01, rel=0.3)


def test_a_higher_rank_starts_from_the_best_fit(monkeypatch):
    """Of a matrix of rank 3, ranks 2 to 4 start from the fit of the rank before, and rank 5 from that of rank 3."""
    starts, fits = {}, {}

    def fit(solver, rounds, **options):
        result = plainly(solver, rounds, **options)
        if not options["uses_all"]:
            starts[rounds.shape[2]], fits[rounds.shape[2]] = rounds, result.rounds
        return result

    plainly = CompiledSolver.fit
    monkeypatch.setattr(CompiledSolver, "fit", fit)
    _, batches, uploads = low_rank(rank=3, n_samples=400, batch=150, n_rounds=60, noise=0.01)
    assert complete(batches, uploads, 400).report.rank == 3
    assert list(starts) == [1, 2, 3, 4, 5]
    for rank, before in ((2, 1), (3, 2), (4, 3), (5, 3)):
        np.testing.assert_array_equal(starts[rank][:, :, :before], fits[before])


def test_the_held_out_error_is_that_of_missing_embeddings():
    """What is reported from held-out uploads is within a factor of 1.5 of the true error of what was never uploaded."""
    training = train(n_samples=1000, batch=100, n_epochs=20)
    for client in range(3):
        result = complete(training.batches, training.uploads(client), 1000)
        errors = full(result)[:, 0] - training.embeddings[:, client, :, 0]
        for t, batch in enumerate(training.batches):
            errors[t, batch] = np.nan
        true = np.sqrt(np.nanmean(errors**2))
        assert true / 1.5 < result.report.held_out_rmse < 1.5 * true


def test_the_spectral_start_beats_a_random_one():
    """At a high rank the true error is less than half as large, after fewer sweeps."""
    training = train(n_samples=1000, batch=100, n_epochs=20, n_features=10)
    arguments = training.batches, training.uploads(0), 1000, 8, 1e-3
    ours, random = (complete(*arguments, start=start) for start in ("spectral", "random"))
    errors = [np.abs(full(result)[:, 0] - training.embeddings[:, 0, :, 0]).mean() for result in (ours, random)]
    assert errors[0] < errors[1] / 2
    assert ours.report.n_sweeps < random.report.n_sweeps


def test_a_completion_can_be_continued():
    """Started from the completion of the first rounds, it arrives at the same embeddings in fewer sweeps."""
    training = train(n_samples=500, batch=50, n_epochs=20)
    uploads, n_before = training.uploads(0), 150
    earlier = complete(training.batches[:n_before], uploads[:n_before], 500)
    cold = complete(training.batches, uploads, 500)
    warm = complete(training.batches, uploads, 500, start=earlier)
    true = training.embeddings[:, 0, :, 0]
    error = np.abs(full(cold)[:, 0] - true).mean()
    assert np.abs(full(warm)[:, 0] - full(cold)[:, 0]).mean() < error
    assert warm.report.n_sweeps < cold.report.n_sweeps


def test_the_rank_of_a_continued_completion_can_grow():
    """A completion that began with too little data for a higher rank gets it once there is more."""
    training = train(n_samples=500, batch=50, n_epochs=20)
    uploads = training.uploads(0)
    earlier = complete(training.batches, uploads, 500, 1)
    warm = complete(training.batches, uploads, 500, start=earlier)
    assert warm.report.rank > 1
    assert warm.report.held_out_rmse < 0.6 * earlier.report.held_out_rmse


def test_one_round_and_one_epoch():
    """Where no sample is seen twice nothing can be held out: rank 1, and the report says so with NaN."""
    training = train(n_epochs=1)
    for n_rounds in (1, 6):
        report = complete(training.batches[:n_rounds], training.uploads(0)[:n_rounds], 300).report
        assert report.rank == 1
        assert report.n_held_out == 0
        assert np.isnan(report.held_out_rmse)


def test_a_round_without_uploads_is_like_the_one_before():
    """It is not completed with zeros."""
    training = train()
    pattern = Pattern.from_batches([*training.batches[:50], np.empty(0, int), *training.batches[50:]], 300)
    uploads = training.uploads(0)
    values = pattern.sort([*uploads[:50], np.empty((0, 1)), *uploads[50:]], 1, n_threads=2)
    observations = Observations.in_memory(pattern, values, 0.05, 0)
    result, _ = fit_with(CompiledSolver(observations, 0.1, 1e-3, 50, 1), 3, 0.1, "spectral", 0)
    np.testing.assert_array_equal(result.rounds[50], result.rounds[49])
    assert np.abs(result.rounds[51] - result.rounds[50]).max() < np.abs(result.rounds[50]).max()


@pytest.mark.parametrize("change", [lambda u: u[:-1], lambda u: [*u, u[0]], lambda u: [*u[:3], u[3][:-1], *u[4:]]])
def test_uploads_of_another_pattern_are_refused(change):
    """Compiled loops do not check bounds: too few or too many rounds, or samples of a round, are an error before."""
    training = train(n_epochs=1)
    pattern = Pattern.from_batches(training.batches, 300)
    with pytest.raises(ValueError, match="not those of the pattern"):
        pattern.sort(change(training.uploads(0)), 1, 2)


def test_embeddings_of_zero_everywhere():
    """A client that only ever uploads zeros is completed with zeros."""
    training = train(n_epochs=3)
    result = complete(training.batches, [np.zeros(len(batch)) for batch in training.batches], 300)
    assert (full(result) == 0).all()


def test_single_precision_is_read_as_such():
    """Uploads in float32 give the embeddings that the same numbers in float64 give."""
    training = train()
    uploads = [values.astype(np.float32) for values in training.uploads(0)]
    narrow = complete(training.batches, uploads, 300, 3)
    wide = complete(training.batches, [values.astype(np.float64) for values in uploads], 300, 3)
    np.testing.assert_allclose(full(narrow), full(wide), atol=1e-12)


def test_interpolation_is_that_of_numpy():
    """Linear between observations, constant outside: the leading direction of one sample is its interpolation."""
    starts, rounds, values = np.array([0, 3]), np.array([0, 3, 5], np.int32), np.array([[1.0], [4.0], [2.0]])
    direction = leading_directions(Observed(starts, rounds, np.zeros(3, bool), values), 7, 1, 1)[:, 0, 0]
    expected = np.interp(np.arange(7), [0, 3, 5], [1, 4, 2])
    np.testing.assert_allclose(direction / direction[0], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_samples": 0}, "n_samples must be at least 1"),
        ({"batches": [[0, 1], [2, 9]]}, r"batches\[1\] must hold sample numbers from 0 to 3"),
        ({"batches": [[0, 1], [2, -1]]}, r"batches\[1\] must hold sample numbers from 0 to 3"),
        ({"batches": [[0, 0], [1, 2]]}, r"batches\[0\] must not repeat samples"),
        ({"batches": [[0.5, 1], [1, 2]]}, r"batches\[0\] must be a list of sample numbers"),
        ({"batches": [[0, 1], []]}, r"batches\[1\] must hold at least one sample"),
        ({"batches": [[0, 1]]}, "one entry for each round"),
        ({"batches": [], "embeddings": []}, "at least one; received 0 and 0"),
        ({"embeddings": [[1.0, 2.0], [1.0]]}, r"embeddings\[1\] must have shape \(2,\)"),
        ({"embeddings": [[1.0, np.nan], [1.0, 1.0]]}, r"embeddings\[0\] must be finite"),
        ({"embeddings": [[1e200, 1.0], [1.0, 1.0]]}, r"embeddings\[0\] must be finite and below 1e\+60"),
        ({"embeddings": None}, "embeddings must have one entry for each round; received NoneType"),
        ({"batches": 5}, "batches must have one entry for each round; received int"),
        ({"start": np.zeros(3)}, "start must be 'spectral'"),
        ({"rank": np.array([1, 2])}, "rank must be a whole number"),
        ({"tolerance": True}, "tolerance must be a positive number"),
        ({"regularization": 10**400}, "regularization must be a positive number"),
        ({"embeddings": [[1.0, 2.0], [[1.0, 2.0], [1.0, 2.0]]]}, r"same number of classes; received \[1, 2\]"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"rank": "three"}, "rank must be a whole number"),
        ({"regularization": 0}, "regularization must be a positive number"),
        ({"start": "zero"}, "start must be 'spectral', 'random' or an earlier Completion"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"n_threads": 0}, "n_threads must be at least 1"),
    ],
)
def test_bad_input(change, message):
    """Each mistake is named, with what was received."""
    arguments = {"batches": [[0, 1], [2, 1]], "embeddings": [[1.0, 2.0], [1.0, 1.0]], "n_samples": 4}
    with pytest.raises(InputError, match=message):
        complete(**(arguments | change))


def test_a_completion_of_other_rounds_cannot_be_continued():
    """One with more rounds, or with another number of classes, is refused."""
    training = train(n_epochs=3)
    uploads = training.uploads(0)
    longer = complete(training.batches, uploads, 300, 1)
    with pytest.raises(InputError, match="has 18 rounds and 1 classes, the uploads have 5 and 1"):
        complete(training.batches[:5], uploads[:5], 300, start=longer)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_short_batch_does_not_draw_its_round_to_zero(loss):
    """The last batch of an epoch has 3 samples instead of 100: the others are interpolated between rounds."""
    training = train(loss, n_samples=303, batch=100, n_epochs=10)
    short = np.array([t for t, batch in enumerate(training.batches[:-1]) if len(batch) == 3])
    for client in range(3):
        result = complete(training.batches, training.uploads(client), 303)
        true = np.moveaxis(training.embeddings[:, client], 2, 1)
        errors, change = full(result)[short] - true[short], true[short + 1] - true[short - 1]
        assert (np.square(errors).mean(axis=(1, 2)) < np.square(change).mean(axis=(1, 2))).all()
        plain = complete_plainly(training.batches, training.uploads(client), 303)
        np.testing.assert_allclose(full(result), full(plain), atol=1e-6)


def test_one_round_of_several_classes():
    """A matrix of as many rows as classes is completed, too."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(3, 2)) @ rng.normal(size=(2, 12))
    result = complete([np.arange(12)], [matrix.T], 20, rank=2, regularization=1e-9)
    np.testing.assert_allclose(result.embeddings(0)[:12], matrix.T, atol=1e-4)
    assert not result.embeddings(0)[12:].any()
