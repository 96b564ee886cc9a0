"""The command line: options, presets, exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.report import Outcome
from benchmarks.runs import FULL, QUICK, Options
from benchmarks.stats import Verdict
from benchmarks.system import BenchError, Env


def parsed(*words: str) -> Options:
    return cli.settings(cli.parser().parse_args(list(words)))


def test_a_full_run_is_at_least_five_rounds_of_both_passes() -> None:
    assert parsed() == FULL
    assert FULL.rounds >= 5
    assert FULL.passes == ("pinned", "free")
    assert FULL.targets is None


def test_what_is_given_goes_over_the_preset() -> None:
    options = parsed("files", "--quick", "--only", "untar,cp-a", "--free", "--rounds", "7")
    assert options == QUICK.but(
        only=("untar", "cp-a"),
        passes=("free",),
        rounds=7,
        checkpoint_rounds=7,
        epoch_rounds=7,
        history_rounds=7,
    )
    assert parsed("epochs", "--sizes", "50,10", "--dirty", "0,2").sizes == (10, 50)
    large = parsed("history", "--sizes", "50", "--history", "7")
    assert (large.history_files, large.history_checkpoints) == (50, 7)
    assert (parsed().history_files, parsed().history_checkpoints) == (1_000_000, 10_000)


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["files", "--only", "nothing"],
        ["--rounds", "0"],
        ["--sizes", "1,x"],
        ["--image", "big"],
        ["--pinned", "--free"],
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(("met", "code"), [(True, 0), (None, 0), (False, 1)])
def test_the_exit_code_tells_of_a_missed_bar(
    met: bool | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: Options, work: Path, env: Env) -> Outcome:
        return Outcome("files", {}, "text", [Verdict("w", "b", None, met)], {})

    monkeypatch.setattr(cli, "RUNS", {"files": run})
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    assert cli.main(["--workdir", str(tmp_path), "--image", "no"]) == code
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: Options, work: Path, env: Env) -> Outcome:
        raise BenchError("no cowfs")

    monkeypatch.setattr(cli, "RUNS", {"files": run})
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    assert cli.main(["--workdir", str(tmp_path), "--image", "no", "--json", "-"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["message"] == "no cowfs"
    assert "no cowfs" in captured.err
