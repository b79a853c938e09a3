import pickle

import numpy as np
import pytest

from tests.valuation.test_values import Asynchronous
from verfedsv import value
from verfedsv.shapley.estimators import ESTIMATORS
from verfedsv.shapley.plan import Plan
from verfedsv.valuation.backends import CompiledLoops


@pytest.mark.parametrize("method", ["closed-form", "exact", "auto"])
def test_the_size_of_a_chunk_is_the_backends_own(monkeypatch, method):
    """Chunks of seven samples add up to the values of one chunk of all, with errors of the same size."""
    recorder = Asynchronous("softmax", n_samples=40, offset=True).record()
    whole = value(recorder, method)
    monkeypatch.setattr(CompiledLoops, "chunk_size", lambda *_: 7)
    parts = value(recorder, method)
    assert (np.abs(parts.values - whole.values) <= parts.errors + whole.errors).all()
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-12)
    if method != "auto":  # which chooses its samples chunk by chunk
        np.testing.assert_allclose(parts.values, whole.values, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(parts.errors, whole.errors, rtol=0.5, atol=1e-14)


def test_backends_and_plans_can_be_sent_to_other_processes():
    """Both are pickled with each chunk."""
    plan = Plan(ESTIMATORS["auto"], n_samples=10, n_permutations=5)
    backend, again = pickle.loads(pickle.dumps((CompiledLoops(), plan)))  # noqa: S301  # our own
    assert isinstance(backend, CompiledLoops)
    assert type(again.estimator) is type(plan.estimator)
