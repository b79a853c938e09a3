import pytest

from tests.settlement.runs import make_run
from verfedsv import Recorder, Transcript, value
from verfedsv.settlement import audit as audits
from verfedsv.settlement.survey import Survey


@pytest.mark.parametrize(
    ("offsets", "has_offset", "varies"),
    [
        ((None, None), False, False),
        ((0.5, 0.25), True, False),
        (([0.5, 0.5], [0.25, 0.25]), True, False),
        (([0.5, 0.5], [0.25, 0.5]), True, True),
    ],
)
def test_a_survey_is_what_was_recorded(offsets, has_offset, varies):
    """It counts absences, and tells an intercept from an offset of each sample."""
    with Recorder(None, [0, 1], ["bank", "telco", "shop"]) as recorder:
        recorder.log([0, 1], {"bank": [-1.0, 1.0], "shop": [0.0, 0.1]}, offsets[0], absent=["telco"])
        recorder.log([0, 1], {"bank": [-2.0, 2.0]}, offsets[1], absent=["telco", "shop"])
    found = Survey.of(recorder.transcript)
    assert (found.n_rounds, found.absences) == (2, {"telco": 2, "shop": 1})
    assert (found.has_offset, found.offset_varies) == (has_offset, varies)


def test_an_audit_reads_all_records_once(tmp_path, monkeypatch):
    """Besides verifying and valuing: transcripts are large."""
    run, n_passes = make_run(tmp_path / "run"), []
    known, records = value(run), Transcript.__iter__

    def counted(transcript):
        yield from records(transcript)
        n_passes.append(transcript)

    monkeypatch.setattr(Transcript, "__iter__", counted)
    monkeypatch.setattr(audits, "value", lambda *_, **__: known)
    assert audits.audit(run).passes
    assert len(n_passes) == 1
