"""What is made of measurements: medians, ratios, tables, documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import Outcome, bytes_text, deliver, seconds_text, spread_text, table
from benchmarks.stats import Ratio, Summary, Verdict, geometric
from benchmarks.svg import Chart, Mark, Row


def test_a_summary_is_the_middle_and_the_ends() -> None:
    summary = Summary.of([3.0, 1.0, 10.0, 2.0, 4.0])
    assert summary
    assert (summary.median, summary.low, summary.high) == (3.0, 1.0, 10.0)
    assert Summary.of([]) is None


def test_a_ratio_is_to_the_median_of_the_base() -> None:
    mine, base = Summary((2.0, 4.0, 12.0)), Summary((1.0, 2.0, 90.0))
    assert mine.over(base) == Ratio(2.0, 1.0, 6.0)


def test_a_geometric_mean_wants_all_of_its_values() -> None:
    assert geometric([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert geometric([1.0, None]) is None
    assert geometric([]) is None


@pytest.mark.parametrize(
    ("verdict", "met"),
    [
        (Verdict.below("w", 1.0, 1.0, " ms"), False),
        (Verdict.below("w", 0.99, 1.0, " ms"), True),
        (Verdict.at_most("w", 4.0, 4.0, "x"), True),
        (Verdict.at_most("w", 4.01, 4.0, "x"), False),
        (Verdict.at_least("w", 0.5, 0.5, "x"), True),
        (Verdict.at_least("w", 0.49, 0.5, "x"), False),
        (Verdict.at_least("w", None, 0.5, "x"), None),
    ],
)
def test_a_verdict_at_its_limit(verdict: Verdict, met: bool | None) -> None:
    assert verdict.met is met
    assert verdict.word == {True: "met", False: "MISSED", None: "not measured"}[met]


def test_numbers_are_short() -> None:
    assert seconds_text(1.5) == "1.50 s"
    assert seconds_text(0.0123) == "12.3 ms"
    assert seconds_text(0.000277) == "277 us"
    assert bytes_text(3 << 20) == "3.00 MiB"
    assert bytes_text(100) == "100 B"
    # The ends are in the unit of the median.
    assert spread_text(Summary((0.9, 1.0, 2.0))) == "1.00 s (0.90-2.00)"
    assert spread_text(None) == "-"


def test_columns_of_a_table_are_aligned() -> None:
    lines = table(["", "a"], [["long name", "1"], ["x", "100"]]).splitlines()
    assert lines == ["             a", "--------------", "long name    1", "x          100"]


def outcome(met: bool | None) -> Outcome:
    value = None if met is None else 1.0
    verdict = Verdict("speed", "<= 1x", value, met)
    chart = Chart("t", "u", ["a"], [Row("r", {"a": Mark(1, 1, 1)})])
    return Outcome("files", {"rounds": 5}, "the table", [verdict], {"picture": chart})


def test_what_is_delivered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    deliver({"kernel": "6"}, "a machine", [outcome(False)], str(target), tmp_path / "svg")
    document = json.loads(target.read_text())
    assert document["ok"] is True
    assert document["files"] == {"rounds": 5}
    assert document["bars"] == [{"what": "speed", "bar": "<= 1x", "value": 1.0, "met": False}]
    assert (tmp_path / "svg" / "picture.svg").read_text().startswith("<svg")
    printed = capsys.readouterr().out
    assert "a machine" in printed
    assert "the table" in printed
    assert "MISSED" in printed


def test_a_document_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    deliver({}, "a machine", [outcome(None)], "-", None)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is True
    assert "not measured" in captured.err
