"""Rounds are refined by draws of their own, and their bounds hold however often they are looked at."""

from dataclasses import replace

import numpy as np

from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import estimate_rounds, get_estimator
from verfedsv.shapley.plan import Allowance, Plan

ALLOWED = Allowance.of_round(0.0, 0.0)


class Insatiable:
    """Asks for round 1 of two, again and again."""

    n_attempts = 3

    def needed(self, values, errors):  # noqa: ARG002
        return {1: ALLOWED}


def test_every_attempt_has_draws_and_a_look_of_its_own():
    """Attempts are seeded differently, and each takes its part of the failure probability; other rounds stay."""
    sampled = Estimate(
        np.ones((2, 2)),
        np.zeros((2, 2)),
        np.full(2, 2.0),
        frozenset({"sampling"}),
        "confidence",
        variance=np.ones((2, 2)),
        largest=np.ones((2, 2)),
    )
    plans = []

    def ask(plan):
        plans.append(plan)
        if len(plans) == 1:
            return replace(sampled, errors=np.full((2, 2), 1e3), methods=frozenset({"closed-form", "sampling"}))
        return replace(sampled, errors=np.full((2, 2), 1e2 / len(plans)))

    found, errors = estimate_rounds(ask, Plan(get_estimator("auto"), 10, 10), 2, Insatiable(), first_look=5)
    assert [plan.first_round for plan in plans[1:]] == [0, 1, 2]
    assert [dict(plan.refined) for plan in plans] == [{}, *[{1: ALLOWED}] * 3]
    np.testing.assert_array_equal(errors[0], sampled.bound(5)[0] + 1e3)
    np.testing.assert_allclose(errors[1], sampled.bound(6 + 2)[1] + 1e2 / 4)
    np.testing.assert_array_equal(found.errors[:, 0], [1e3, 1e2 / 4])
