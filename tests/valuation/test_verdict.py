import numpy as np
import pytest

from tests.report.valuations import make_valuation
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.explanation import cautions
from verfedsv.settlement.payouts import Basis
from verfedsv.valuation.result import Books
from verfedsv.valuation.verdict import NO_FACTS, RunFacts, judge, numerical_error, still_falling

SOUND = {"values": [0.1, 0.05], "errors": 1e-5}


def judged(run=NO_FACTS, **changes):
    return judge(make_valuation(**{**SOUND, **changes}), run)


def kinds(verdict):
    return [reason.kind for reason in verdict.reasons]


def test_a_sound_valuation_has_no_reasons():
    """Nothing is said where nothing is wrong."""
    verdict = judged()
    assert (verdict.word, verdict.reasons) == ("sound", ())


@pytest.mark.parametrize(
    ("changes", "word", "kind"),
    [
        ({"values": [-0.1, 0.05]}, "rejected", "loss"),
        ({"values": [-0.1, 0.05]}, "rejected", "clients"),
        ({"values": [0.1, -0.1]}, "rejected", "clients"),
        ({"values": [0.1, 0.05], "server": -0.5}, "rejected", "loss"),
        ({"values": [0.1, 0.05], "server": 0.5}, "doubtful", "server"),
        ({"losses": np.array([0.7, 0.6, 0.5, 0.4, 0.3])}, "doubtful", "balance"),
        ({"server_error": np.nan, "losses": np.array([0.7, 0.6, 0.5, 0.4, 0.3])}, "doubtful", "balance"),
        ({"values": [10.0, -9.9], "errors": 1e-9}, "doubtful", "cancel"),
        ({"losses": np.log(2) - 4 * 0.15 * np.array([0, 2.5, 3, 2, 1])}, "doubtful", "rise"),
        ({"losses": np.log(2) - 4 * 0.15 * np.array([0, 0.9, 0.1, 0.6, 1])}, "doubtful", "rise"),
        ({"errors": [0.1, 0.1]}, "doubtful", "errors"),
        ({"values": [0.1] * 9, "errors": [0.2] + [0.0] * 8}, "doubtful", "errors"),
        ({"errors": [np.nan, 0.0], "completed": True}, "doubtful", "unknown"),
        ({"clients": ["bank", "b\u0430nk"]}, "doubtful", "names"),
        ({"run": RunFacts(n_planned=9)}, "doubtful", "extent"),
        ({"run": RunFacts(is_running=True)}, "doubtful", "extent"),
        ({"run": RunFacts(evaluated=0.6)}, "doubtful", "evaluation"),
        ({"run": RunFacts(faults=("Part of the record was lost.",))}, "doubtful", "record"),
        ({"run": RunFacts(notes=("a column gives the label away",))}, "sound", "data"),
        ({"tolerance_met": False}, "sound", "tolerance"),
        ({"n_unseen": 3}, "sound", "unseen"),
        ({"n_rounds": 40, "losses": 0.7 - np.linspace(0, 6, 41)}, "sound", "falling"),
    ],
)
def test_each_reason_is_found(changes, word, kind):
    """And weighs as much as it should."""
    verdict = judged(**changes)
    if kind != "falling":
        assert verdict.word == word
    assert kind in kinds(verdict)


def test_shares_may_be_above_one():
    """A client that does some harm leaves others a share above 100 %; only beyond 200 % is it a reason."""
    assert kinds(judged(values=[0.3, -0.14])) == []
    assert kinds(judged(values=[0.3, -0.16])) == ["cancel"]


def test_evaluations_confirm_half_of_what_was_recorded():
    """Predictions are those of a later step, or of an earlier one; other embeddings are needed for less than half."""
    start, end = judged_books(losses := np.array([0.8, 0.5, 0.3, 0.2, 0.2]))
    for evaluated, is_said in ((0.1, False), (0.49, False), (0.51, True), (0.9, True), (np.inf, True), (None, False)):
        assert ("evaluation" in kinds(judged(RunFacts(evaluated=evaluated), losses=losses))) == is_said
    assert (start, end) == (0.8, 0.2)
    assert "evaluation" not in kinds(judged(RunFacts(evaluated=0.9), losses=losses[::-1]))


def judged_books(losses):
    books = make_valuation(**SOUND, losses=losses).books
    return books.start, books.end


def test_a_loss_that_wavers_did_not_rise_again():
    """Less than half of the decrease may be lost again."""
    for end, is_said in ((0.45, False), (0.55, True)):
        losses = np.array([0.8, 0.5, 0.2, end, end])
        assert ("rise" in kinds(judged(losses=losses))) == is_said


def test_reasons_of_most_weight_come_first():
    """Alarms, then doubts, then notes."""
    verdict = judged(RunFacts(9, notes=("so",)), values=[-0.1, 0.05], errors=[np.nan, 0.0], tolerance_met=False)
    weights = [reason.weight for reason in verdict.reasons]
    assert weights == sorted(weights, key=("alarm", "doubt", "note").index)
    assert kinds(verdict) == ["loss", "clients", "unknown", "extent", "tolerance", "data"]


def test_faults_do_nothing_in_a_terminal():
    """They may quote what others wrote."""
    (text,) = judged(RunFacts(faults=("one\x1b[2J\ntwo",))).texts()
    assert text == "one\N{REPLACEMENT CHARACTER}[2J two"


def test_only_shapley_values_have_to_balance():
    """Others need not add up to the decrease of the loss."""
    losses = np.array([0.7, 0.6, 0.5, 0.4, 0.3])
    assert "balance" in kinds(judged(losses=losses))
    assert "balance" not in kinds(judged(losses=losses, settings=ValuationSettings(semivalue="banzhaf")))


def test_books_balance_up_to_the_errors_of_the_estimator():
    """What the errors allow is no reason; twice as much is one."""
    valuation = make_valuation([0.1, 0.05], 0.01)
    allowed = valuation.n_rounds * 0.02
    for factor, is_said in ((0.9, False), (1.1, True)):
        losses = valuation.losses + np.array([factor * allowed, 0, 0, 0, 0])
        assert ("balance" in kinds(judged(errors=0.01, losses=losses))) == is_said


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"completed": True}, "because of completion. Record more rounds before paying anything based on them, or"),
        ({"error_kind": "confidence"}, "because of sampling. Allow more permutations (verfedsv value --permutations)."),
        ({}, "because of the closed form. Use the method auto."),
    ],
)
def test_errors_that_are_too_large_have_a_cause_and_a_remedy(changes, cause):
    """Both where they reach the sum of the values, and where one is larger than the largest value."""
    (together,) = judged(errors=[0.1, 0.1], **changes).texts()
    assert together.startswith("The values cannot be relied on: their errors add up to as much as the values")
    assert cause in together
    (single,) = judged(values=[0.1] * 9, errors=[0.0, 0.2] + [0.0] * 7, **changes).texts()
    assert single.startswith("The value of 'telco' cannot be relied on: its error is 2 times the largest value")
    assert cause in single


@pytest.mark.parametrize("errors", [[0.1, 0.1], np.nan], ids=["too large", "unknown"])
def test_completed_losses_say_nothing_where_completion_is_poor(errors):
    """Neither that the loss rose again nor that it was falling: the advice is on the completion, first on its rank."""
    losses = np.log(2) - 4 * 0.15 * np.array([0, 0.9, 0.1, 0.6, 1])
    falling = {"n_rounds": 40, "losses": 0.7 - np.linspace(0, 6, 41)}
    for changes, kind in (({"losses": losses}, "rise"), (falling, "falling")):
        assert kind in kinds(judged(**changes))
        assert kind in kinds(judged(errors=[1e-3, 1e-3], completed=True, **changes))
        assert kind not in kinds(judged(errors=errors, completed=True, **changes))
    settings = ValuationSettings(rank=2)
    (fixed,) = judged(errors=errors, completed=True, settings=settings).texts("doubt")
    assert 'The rank of the completion was set to 2: try a higher one, or "auto" (verfedsv value --rank auto).' in fixed
    (automatic,) = judged(errors=errors, completed=True).texts("doubt")
    assert "rank" not in automatic


@pytest.mark.parametrize("changes", [{}, {"errors": [0.1, 0.1]}, {"values": [-1.0, 0.5]}, {"errors": [np.nan, 0.1]}])
def test_what_was_settled_is_judged_like_its_valuation(changes):
    """By the same kinds of reasons, as far as a settlement knows them."""
    valuation = make_valuation(**{**SOUND, **changes})
    settled = judge(Basis.of(valuation, 9), RunFacts(9))
    assert kinds(settled) == kinds(judge(valuation, RunFacts(9)))
    assert cautions(Basis.of(valuation, 9)) == [reason for reason in settled.reasons if reason.weight != "note"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "proven"),
        ({"error_kind": "confidence"}, "confident"),
        ({"error_kind": "confidence on an assumption"}, "assumed"),
        ({"error_kind": "certified but for rounding"}, "proven"),
        ({"completed": True}, "estimated"),
        ({"errors": np.nan, "completed": True}, "unknown"),
        ({"errors": np.inf, "error_kind": "unknown"}, "unknown"),
        ({"errors": [np.nan, 1e-5], "completed": True}, "estimated"),
        ({"errors": 5.0}, "unreliable"),
        ({"values": [-3.0, 1.0], "errors": 0.5}, "proven"),
        ({"values": [-3.0, 1.0], "errors": [50.0, 0.5]}, "unreliable"),
        ({"values": [0.0, 0.0], "errors": 0.0}, "proven"),
    ],
)
def test_what_is_known_of_the_numerical_error(changes, kind):
    """Compared with the sum of the values, or with their sizes where that is not positive."""
    assert numerical_error(make_valuation(**{**SOUND, **changes})) == kind


@pytest.mark.parametrize(("n_rounds", "last"), [(40, "4 rounds"), (240, "24 rounds"), (5, "round"), (19, "round")])
def test_a_loss_that_falls_in_the_end_is_found(n_rounds, last):
    """A straight line is still falling; a decay that came to rest, a rise and a very short training are not."""
    steps = np.arange(n_rounds + 1) / n_rounds
    part = still_falling(0.7 - 0.4 * steps)
    texts = judged(n_rounds=n_rounds, losses=0.7 - 0.4 * steps).texts("note")
    assert f"the last {last} brought {100 * part:.1f} % of the total decrease" in texts[0]
    assert still_falling(0.3 + 0.4 * np.exp(-10 * steps)) is None
    assert still_falling(0.3 + 0.4 * steps) is None
    assert still_falling(np.linspace(0.7, 0.3, 5)) is None


def test_small_differences_count_and_rounding_does_not():
    """A loss that rose by a millionth rose; values that are rounding errors of the loss are none; nor is a balance."""
    assert Books(0.7, 0.7 + 1e-6, -1e-6, 0.0).loss_rose
    assert not Books(0.7, 0.7 + 1e-16, 0.0, 0.0).loss_rose
    assert Books(0.7, 0.7 - 1e-6, 1e-6, 0.0).has_shares
    assert not Books(0.7, 0.7, 1e-15, 0.0).has_shares
    losses = make_valuation(**SOUND | {"errors": 0.0}).losses
    for missing, is_said in ((1e-12, False), (1e-6, True)):
        verdict = judged(errors=0.0, losses=losses + np.array([missing, 0, 0, 0, 0]))
        assert ("balance" in kinds(verdict)) == is_said


def test_two_per_cent_of_the_decrease_are_little():
    """In the last tenth of the rounds; just above that the loss was still falling."""
    for part, is_falling in ((0.019, False), (0.021, True)):
        losses = np.concatenate([np.linspace(1.0, part, 80), np.full(11, part), np.zeros(10)])
        assert (still_falling(losses) is not None) == is_falling


def test_errors_that_rest_on_an_assumption_have_a_note():
    """Which says what is assumed, and which method assumes nothing; the verdict stays the same."""
    found = judge(make_valuation(**SOUND, error_kind="confidence on an assumption"))
    assert found.word == "sound"
    (reason,) = (reason for reason in found.reasons if reason.kind == "assumed")
    assert reason.weight == "note"
    assert "not proven" in reason.text
    assert "exact" in reason.text
    assert "assumed" not in kinds(judge(make_valuation(**SOUND, error_kind="confidence")))
