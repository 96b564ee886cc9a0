"""The runner: a real workload on a plain directory, and targets and steps that fail."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from benchmarks.files import FilesReport
from benchmarks.inputs.materials import Inputs
from benchmarks.inputs.project import Archive, prepare
from benchmarks.runner import Cell, FilesRun, Measurements, Pass
from benchmarks.system import BenchError, child_environment
from benchmarks.targets import TARGETS, Native, Place, Target
from benchmarks.workloads import WORKLOADS, with_needs
from benchmarks.workloads.base import Cache, Workload

ONE_PASS = Pass("pinned", frozenset({max(os.sched_getaffinity(0))}))


class Absent(Target):
    """A target that this machine lacks."""

    name = "absent"

    @classmethod
    def obstacle(cls) -> str | None:
        return "it is not installed"

    def setup(self) -> Place:
        raise AssertionError("a target with an obstacle was set up")


class Broken(Target):
    """A target that cannot be mounted."""

    name = "broken"

    def setup(self) -> Place:
        raise BenchError("it did not mount")


class Leaky(Native):
    """A target that cannot be unmounted."""

    name = "leaky"

    def teardown(self) -> None:
        raise BenchError("it stays")


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    source = tmp_path / "source" / "project"
    (source / "directory").mkdir(parents=True)
    for name in ("a", "directory/b", "directory/c"):
        (source / name).write_text("content\n")
    archive = prepare(source, tmp_path / "source")
    assert archive.entries == 5
    return Inputs(archive, child_environment(tmp_path), data_mib=1)


def run(
    tmp_path: Path, inputs: Inputs, steps: list[Workload], *targets: type[Target], rounds: int = 1
) -> Measurements:
    work = tmp_path / "work"
    work.mkdir()
    result = FilesRun(targets, steps, [ONE_PASS], inputs, work, 60.0).run(rounds)
    assert list(work.iterdir()) == []
    return result


def test_a_real_workload_on_a_plain_directory(tmp_path: Path, inputs: Inputs) -> None:
    steps = with_needs(["rm-rf", "find"])
    assert [step.name for step in steps] == ["untar", "cp-a", "find", "rm-rf"]
    result = run(tmp_path, inputs, steps, Native, rounds=2)
    assert result.missing == {}
    for step in steps:
        seconds = result.seconds[Cell("pinned", step.name, "native")]
        assert len(seconds) == 2
        assert all(second > 0 for second in seconds)
    assert result.requests == {}


def test_the_steps_of_a_file(tmp_path: Path, inputs: Inputs) -> None:
    steps = with_needs(["seq-read", "rand-write", "par2-unlink"])
    result = run(tmp_path, inputs, steps, Native)
    assert result.missing == {}


def test_targets_that_fail_do_not_end_the_run(tmp_path: Path, inputs: Inputs) -> None:
    steps = with_needs(["untar"])
    result = run(tmp_path, inputs, steps, Absent, Broken, Leaky, Native)
    missing = {cell.target: missing for cell, missing in result.missing.items()}
    assert set(missing) == {"absent", "broken"}
    assert missing["absent"].detail == "it is not installed"
    assert (missing["broken"].word, missing["broken"].detail) == ("FAILED", "it did not mount")
    assert result.notes == ["leaky: it stays"]
    assert result.summary(Cell("pinned", "untar", "native"))
    text = FilesReport(result, [ONE_PASS], steps, ["native", "absent", "broken"], 1).text("source")
    assert "absent (pinned): it is not installed [untar]" in text
    assert "broken (pinned): it did not mount [untar]" in text


def test_what_lies_below_a_mount_that_went_is_not_measured(tmp_path: Path, inputs: Inputs) -> None:
    class Gone(Native):
        name = "gone"

        def setup(self) -> Place:
            return Place(self.work)

    result = run(tmp_path, inputs, with_needs(["untar"]), Gone)
    assert "not mounted any more" in result.missing[Cell("pinned", "untar", "gone")].detail


def test_a_step_that_fails_takes_what_needs_it_along(tmp_path: Path, inputs: Inputs) -> None:
    def fail(directory: Path, inputs: Inputs) -> None:
        raise BenchError("a reason")

    steps = [
        Workload("bad", "bad", fail),
        Workload("after", "after", lambda directory, inputs: None, needs=("bad",)),
        Workload("good", "good", lambda directory, inputs: 0.25),
    ]
    result = run(tmp_path, inputs, steps, Native)
    assert result.missing[Cell("pinned", "bad", "native")].detail == "a reason"
    assert Cell("pinned", "after", "native") in result.missing
    # What a workload measures itself counts.
    assert result.seconds[Cell("pinned", "good", "native")] == [0.25]


def test_a_workload_that_fails_on_cowfs_is_a_missed_bar(tmp_path: Path, inputs: Inputs) -> None:
    class Subject(Broken):
        name = "cowfs"

    def fail(directory: Path, inputs: Inputs) -> None:
        raise BenchError("it fails everywhere")

    steps = [*with_needs(["untar"]), Workload("bad", "bad", fail)]
    result = run(tmp_path, inputs, steps, Native, Subject)
    report = FilesReport(result, [ONE_PASS], steps, ["native", "cowfs"], 1)
    assert [verdict.what for verdict in report.verdicts() if verdict.met is False] == [
        "untar (pinned)"
    ]


def test_what_is_not_installed_is_named(tmp_path: Path, inputs: Inputs) -> None:
    inputs.obstacles["wheels"] = "no network"
    steps = [
        Workload("tool", "tool", lambda directory, inputs: None, tool="no-such-program"),
        Workload("pip", "pip", lambda directory, inputs: None, material="wheels"),
    ]
    result = run(tmp_path, inputs, steps, Native)
    reasons = {cell.workload: missing.detail for cell, missing in result.missing.items()}
    assert reasons == {"tool": "no-such-program is not installed", "pip": "no network"}


def test_warm_steps_run_twice_and_are_prepared_once(tmp_path: Path, inputs: Inputs) -> None:
    calls = []
    step = Workload(
        "w",
        "w",
        lambda directory, inputs: calls.append("run"),
        Cache.WARM,
        prepare=lambda directory, inputs: calls.append("prepare"),
    )
    run(tmp_path, inputs, [step], Native)
    assert calls == ["prepare", "run", "run"]


def test_names_are_unique_and_needs_come_before() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    seen: set[str] = set()
    for workload in WORKLOADS:
        assert workload.name not in seen
        assert set(workload.needs) <= seen, workload.name
        seen.add(workload.name)


def test_an_archive_of_the_users_is_repacked_plain(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x" * 1000)
    packed = tmp_path / "project.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "file", "file")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found: Archive = prepare(packed, scratch)
    assert (found.entries, found.bytes) == (1, 1000)
    with tarfile.open(found.path, "r:") as plain:
        assert plain.getnames() == ["file"]
