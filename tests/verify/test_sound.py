"""A sound store has no problems, and everything in it is looked at."""

from __future__ import annotations

import json

from cowfs.store.env import TABLES
from tests.verify.sample import Sample


def test_a_sound_store_has_no_problems(sound_sample: Sample) -> None:
    report = sound_sample.verify()
    assert report.problems == []
    assert report.notes == []
    assert report.count == 0
    assert report.skipped == []


def test_every_table_is_counted(sound_sample: Sample) -> None:
    report = sound_sample.verify()
    assert set(TABLES) <= set(report.checked)
    assert report.checked["epoch"] == 5
    assert report.checked["checkpoint"] == 4
    assert report.checked["block"] == 7
    assert report.checked["pages"] > 10


def test_progress_ends_where_it_should(sound_sample: Sample) -> None:
    calls: list[tuple[str, int, int]] = []
    sound_sample.verify(progress=lambda *call: calls.append(call))
    last = {phase: (done, total) for phase, done, total in calls}
    assert {"block", "inode", "extent", "change"} <= set(last)
    assert all(done == total for phase, (done, total) in last.items() if phase != "pages")


def test_a_report_is_plain_data(sample: Sample) -> None:
    with sample.open() as hands:
        hands.put("label", b"nowhere", b"0" * 12)
    report = sample.verify()
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["problems"][0]["check"] == "label"
    assert plain["problems"][0]["severity"] == "error"
