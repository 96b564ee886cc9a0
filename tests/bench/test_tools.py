"""The tools that make checkpoints: each keeps a state and brings it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import pypi_peer
from benchmarks.checkpoints.storage import measure
from benchmarks.checkpoints.tools import (
    TOOLS,
    Btrfs,
    Copies,
    CowfsTool,
    PypiSnapshots,
    ShadowGit,
    Tool,
)
from benchmarks.epochs.scales import scales
from benchmarks.epochs.workspace import Scale, make_tree
from benchmarks.inputs.cache import cache_directory
from benchmarks.inputs.histories import History
from benchmarks.system import Env, allocated, child_environment, run_tool
from tests.support.checking import check_store
from tests.support.mounting import fuse_missing


@pytest.fixture
def env(tmp_path: Path) -> Env:
    return child_environment(tmp_path)


def available(kind: type[Tool]) -> None:
    """Skip where this machine lacks the tool."""
    if kind in (CowfsTool, PypiSnapshots) and fuse_missing():
        pytest.skip(fuse_missing())
    if kind is PypiSnapshots and not (cache_directory() / pypi_peer.NAME).exists():
        pytest.skip("only a benchmark fetches it")
    if why := kind.obstacle():
        pytest.skip(why)


def three_files(tree: Path) -> None:
    make_tree(tree, 3)


# btrfs needs a loop device, which a test suite should not take from a machine.
@pytest.mark.parametrize("kind", [t for t in TOOLS if t is not Btrfs], ids=lambda t: t.name)
def test_a_state_is_kept_and_comes_back(kind: type[Tool], tmp_path: Path, env: Env) -> None:
    available(kind)
    work = tmp_path / "work"
    work.mkdir()
    tool = kind(work, env)
    try:
        tool.setup(three_files)
        (file, *_) = sorted(tool.tree.rglob("file*.txt"))
        first = file.read_text()
        kept = tool.checkpoint()
        file.write_text("changed\n")
        added = file.with_name("added")
        added.write_text("new\n")
        tool.restore(kept)
        assert file.read_text() == first
        assert added.exists() is not tool.exact
        assert tool.stored() > 0
        packed = tool.pack()
        assert packed is None or packed > 0
        tool.trim()
    finally:
        tool.teardown()
    if kind is CowfsTool:
        base = os.open(work / "tree", os.O_RDONLY | os.O_DIRECTORY)
        try:
            check_store(work / "store", base)
        finally:
            os.close(base)


@pytest.fixture
def history(tmp_path: Path, env: Env) -> History:
    """Three states: a file grows, another one goes."""
    source = tmp_path / "history"
    source.mkdir()
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]

    def git(*arguments: str) -> str:
        return run_tool(["git", *who, *arguments], cwd=source, env=env).decode()

    git("init", "-q")
    for state in range(3):
        (source / "grows").write_text("line\n" * (state + 1) * 100)
        (source / f"only{state}").write_text("x\n")
        (source / f"only{state - 1}").unlink(missing_ok=True)
        git("add", "-A")
        git("commit", "-q", "-m", f"state {state}")
    commits = git("rev-list", "--reverse", "HEAD").split()
    return History("three states", source / ".git", commits)


def test_a_history_goes_from_state_to_state(history: History, tmp_path: Path, env: Env) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for state in range(3):
        history.go(tree, state, tmp_path / "index", env)
        assert sorted(path.name for path in tree.iterdir()) == ["grows", f"only{state}"]
        history.check(tree, state, tmp_path, env, exact=True)
    (tree / "more").write_text("")
    history.check(tree, 2, tmp_path, env, exact=False)
    with pytest.raises(Exception, match="state 2 of three states is not as it was: more"):
        history.check(tree, 2, tmp_path, env, exact=True)
    (tree / "grows").write_text("other\n")
    with pytest.raises(Exception, match="grows"):
        history.check(tree, 2, tmp_path, env, exact=False)


def test_what_a_history_takes(history: History, tmp_path: Path, env: Env) -> None:
    class Lacking(Copies):
        name = "lacking"

        @classmethod
        def obstacle(cls) -> str | None:
            return "a reason"

    work = tmp_path / "work"
    report = measure(work, env, [ShadowGit, Copies, Lacking], [history], 60.0)
    assert report.missing == {("three states", "lacking"): "a reason"}
    copies = report.results["three states", "copies"]
    # Two files of one block each in every state, and a directory.
    assert copies.stored >= 3 * 2 * 4096
    assert len(copies.seconds) == 3
    assert "a reason" in report.text()
    assert report.packed("three states")
    words = {verdict.what: verdict.word for verdict in report.verdicts()}
    assert set(words.values()) == {"not measured"}, "cowfs was not among the tools"
    (chart,) = report.charts().values()
    assert list(chart.rows[0].marks) == ["shadow git", "copies"]


def test_hard_links_and_holes_take_no_disk(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    empty = allocated(tree)
    (tree / "a").write_bytes(b"x" * 8192)
    once = allocated(tree)
    assert once - empty == 8192
    (tree / "b").hardlink_to(tree / "a")
    with (tree / "hole").open("wb") as file:
        file.truncate(1 << 30)
    (tree / "link").symlink_to("a")
    assert allocated(tree) == once


def test_scales_are_the_edges_and_the_far_corner() -> None:
    assert scales([10, 100, 1000], [1, 5]) == [
        Scale(10, 1),
        Scale(10, 5),
        Scale(100, 1),
        Scale(1000, 1),
        Scale(1000, 5),
    ]
    assert scales([10], [1]) == [Scale(10, 1)]
