"""The parts of the virtual machine that need none."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.recorder import Entry
from tests.vm import cuts, story, suite
from tests.vm.image import ROOT, key, sources
from tests.vm.logged import ENTRY, HEAD, MAGIC, read_log, report_in
from tests.vm.trouble import VmError, need_room

SECTOR = 512


def test_the_key_changes_with_what_the_image_is_made_of(tmp_path: Path) -> None:
    for name in ("tests/vm", "scripts", "requirements"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("tests/vm/image.py", "tests/vm/initrd", "scripts/setup", "requirements/dev.txt"):
        (tmp_path / name).write_text(name)
    before = key(tmp_path)
    assert key(tmp_path) == before
    (tmp_path / "requirements/dev.txt").write_text("another version")
    assert key(tmp_path) != before


def test_package_sources_of_the_release(tmp_path: Path) -> None:
    more = tmp_path / "sources.list.d"
    more.mkdir()
    (tmp_path / "sources.list").write_text("# nothing\ndeb [arch=amd64] http://a bookworm main\n")
    (more / "b.sources").write_text(
        "Types: deb\nURIs: http://b\nSuites: bookworm bookworm-updates\n"
    )
    (more / "c.list").write_text("deb http://c other-bookworm main\n")
    (more / "d.sources").write_text("Types: deb\nURIs: http://d\nSuites: trixie\n")
    assert sources(tmp_path) == [tmp_path / "sources.list", more / "b.sources"]


def _entry(sector: int, data: bytes = b"", flags: int = 0) -> bytes:
    head = ENTRY.pack(sector, len(data) // SECTOR, flags, 0)
    return head.ljust(SECTOR, b"\0") + data


def test_a_log_of_writes(tmp_path: Path) -> None:
    """By Documentation/admin-guide/device-mapper/log-writes.rst."""
    fact = b'[1, "done", {"3": "abcd"}]'
    log = HEAD.pack(MAGIC, 1, 0, SECTOR).ljust(SECTOR, b"\0")
    log += _entry(8, b"x" * 1024) + _entry(0, flags=1) + _entry(100, fact.ljust(SECTOR, b"\0"))
    log += _entry(16, b"y" * 1024)[:-1]  # QEMU was killed in it
    (tmp_path / "log").write_bytes(log)
    assert list(read_log(tmp_path / "log", 100 * SECTOR)) == [
        Entry(b"W", 8 * SECTOR, b"x" * 1024),
        Entry(b"S", 0, b""),
        Entry(b"F", 0, fact),
    ]
    assert report_in(fact) == ["done", {"3": "abcd"}]


def test_a_log_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(SECTOR))
    with pytest.raises(VmError, match="no log of writes"):
        list(read_log(tmp_path / "log", 0))


def test_what_lives_reported_is_told_again() -> None:
    """The machine gets it as JSON, and must come to the same."""
    base = story.base_as_made()
    life = story.Life(7, [["start", 0]])
    progress = story.progress_of(story.told(base, []).surely, 7, {})
    number = 0
    for call in story.calls_of(story.told(base, []).surely, 7)[:40]:
        for report in (
            ["begin"],
            ["done", {str(number + 1): "id"} if call[0] == "checkpoint" else {}],
        ):
            life.reports.append(report)
            progress.note(report)
        number += call[0] == "checkpoint"
    lives = story.from_json(json.loads(json.dumps(story.to_json([life]))))
    known, right = story.told(base, lives), progress.knowledge()
    assert progress.facts > 0
    assert known.ids == right.ids
    assert [s.tree.view() for s in known.states] == [s.tree.view() for s in right.states]


def test_the_results_of_commands_are_counted() -> None:
    outcome = suite.Outcome()
    for line in (
        "54 passed, 2 skipped in 12.50s (0:00:12)",
        "1 failed, 3 passed, 1 error in 1.00s",
        "40 kills in 25 s, 20 at 20 steps, 20 at random moments",
        "7 passed the door",
    ):
        outcome.note(line)
    assert (outcome.passed, outcome.failed, outcome.skipped, outcome.kills) == (57, 2, 2, 40)


def test_the_tests_of_the_suite_exist() -> None:
    for _, words in suite.STEPS:
        for word in words:
            if word.startswith("tests/"):
                name, _, test = word.partition("::")
                assert f"def {test.partition('[')[0]}" in (ROOT / name).read_text(), word


def test_no_room() -> None:
    with pytest.raises(VmError, match="MiB free"):
        need_room(Path("/"), 1 << 60)


def _vm(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"PATH": path} if path is not None else {})
    return subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-P", "-m", "tests.vm", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["--cuts", "0"], ["--cuts", "1", "--states", "1"], ["--control"], ["nonsense"]]
)
def test_wrong_arguments(arguments: list[str]) -> None:
    done = _vm(*arguments)
    assert done.returncode == 2
    assert "usage: scripts/vm" in done.stderr


def test_help_has_examples() -> None:
    done = _vm("--help")
    assert done.returncode == 0
    assert "scripts/vm --cuts 20" in done.stdout


def test_moments_are_of_all_kinds() -> None:
    moments = [cuts._moment(random.Random(seed)) for seed in range(60)]
    assert any(m.call >= 0 for m in moments)
    assert any(m.fact >= 0 for m in moments)
    assert any(m.call < 0 and m.fact < 0 for m in moments)


def test_the_vagrantfile_is_valid(tmp_path: Path) -> None:
    if shutil.which("vagrant") is None:
        pytest.skip("vagrant is not installed")
    env = {**os.environ, "VAGRANT_HOME": str(tmp_path), "VAGRANT_CHECKPOINT_DISABLE": "1"}
    env["VAGRANT_DOTFILE_PATH"] = str(tmp_path / "machines")
    done = subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
