"""What a checkpoint records of git, compared with what git itself says."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format.records import GitState
from tests.support.volumes import Rig
from tests.tools.test_git import Repository, git_environment
from tests.tools.tool import need

OTHER = "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"
NOTHING = GitState()


@pytest.fixture
def git(base: Path, tmp_path: Path) -> Repository:
    """A repository with two commits in the base directory, which no volume has looked at."""
    need("git")
    repository = Repository(base, git_environment(tmp_path))
    repository("init", "-q", "-b", "main")
    for number in range(2):
        (base / "file").write_text(f"{number}\n")
        repository("add", "file")
        repository("commit", "-q", "-m", f"{number}")
    return repository


def said_by(git: Repository) -> GitState:
    index = os.stat(git.top / git("rev-parse", "--git-path", "index"))
    branch = git("branch", "--show-current")
    return GitState(git("rev-parse", "HEAD"), branch, index.st_mtime_ns, index.st_size)


def look_at_all(rig: Rig) -> None:
    rig.tree()


def look_at_the_top(rig: Rig) -> None:
    rig.ls()


def look_at_nothing(rig: Rig) -> None:
    return


LOOKS = [look_at_nothing, look_at_the_top, look_at_all]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("packed", [False, True])
def test_in_the_base(
    open_rig: Callable[[], Rig], git: Repository, look: Callable[[Rig], None], packed: bool
) -> None:
    if packed:
        git("pack-refs", "--all")
    rig = open_rig()
    look(rig)
    before = rig.volume.dirty
    assert rig.checkpoint().git == said_by(git)
    assert rig.volume.dirty == before or look is not look_at_nothing


@pytest.mark.parametrize("committed", [False, True])
def test_written_in_the_workspace(
    open_rig: Callable[[], Rig], git: Repository, committed: bool
) -> None:
    rig = open_rig()
    first = said_by(git)
    for path, content in (
        (b".git/refs/heads/topic", OTHER.encode() + b"\n"),
        (b".git/HEAD", b"ref: refs/heads/topic\n"),
        (b".git/index", b"123"),
    ):
        rig.save(path, content)
    if committed:
        rig.volume.sync()
        rig.evict()
    state = rig.checkpoint().git
    assert (state.commit, state.branch, state.index_size) == (OTHER, "topic", 3)
    assert state.index_mtime == rig.at(b".git/index").mtime
    rescue = rig.restore("0123456789ab").rescue
    assert rescue.git == state, "of the state that the restore leaves"
    assert rig.checkpoint().git == first


def test_another_branch_each(open_rig: Callable[[], Rig], git: Repository) -> None:
    """Detached, without a commit, with a name of several parts, in SHA-256."""
    commit = git("rev-parse", "HEAD")
    wanted = {
        commit: (commit, ""),
        "ref: refs/heads/a/b/c": (commit, "a/b/c"),
        "ref: refs/heads/unborn": ("", "unborn"),
        "ref: refs/heads/twice": (commit, "twice"),
        "f" * 64: ("f" * 64, ""),
    }
    git("branch", "a/b/c")
    git("symbolic-ref", "refs/heads/twice", "refs/heads/main")
    rig = open_rig()
    for head, found in wanted.items():
        rig.save(b".git/HEAD", head.encode() + b"\n")
        state = rig.checkpoint().git
        assert (state.commit, state.branch) == found


@pytest.mark.parametrize("absolute", [False, True])
def test_a_directory_of_git_elsewhere_in_the_workspace(
    open_rig: Callable[[], Rig], git: Repository, base: Path, absolute: bool
) -> None:
    """As that of a submodule, or of a work tree whose repository lies below it."""
    shutil.move(base / ".git", base / "real")
    place = base / "real" if absolute else Path("real")
    (base / ".git").write_text(f"gitdir: {place}\n")
    assert open_rig().checkpoint().git == said_by(git)


def test_a_worktree_below_its_repository(
    open_rig: Callable[[], Rig], git: Repository, base: Path, tmp_path: Path
) -> None:
    """Its references are those of the repository, HEAD and index its own."""
    git("worktree", "add", "-q", "-b", "side", "work")
    shutil.move(base / ".git", base / "real")
    (base / ".git").write_text("gitdir: real/worktrees/work\n")
    (base / "work/.git").write_text(f"gitdir: {base}/real/worktrees/work\n")
    rig = open_rig()
    rig.tree()
    assert rig.checkpoint().git == said_by(Repository(base / "work", git.env))


def _fifo(rig: Rig) -> None:
    rig.unlink(b".git/HEAD")
    rig.create(b".git/HEAD", mode=stat.S_IFIFO | 0o644)


def _directory(rig: Rig) -> None:
    rig.unlink(b".git/HEAD")
    rig.mkdir(b".git/HEAD")


def _link(target: bytes) -> Callable[[Rig], None]:
    def make(rig: Rig) -> None:
        rig.remove_tree(b".git")
        rig.symlink(target, b".git")

    return make


def _file(content: bytes) -> Callable[[Rig], None]:
    def make(rig: Rig) -> None:
        rig.remove_tree(b".git")
        rig.create(b".git", content)

    return make


STRANGE: dict[str, Callable[[Rig], None]] = {
    "none": lambda rig: rig.remove_tree(b".git"),
    "a fifo": _fifo,
    "a directory": _directory,
    "too long": lambda rig: rig.save(b".git/HEAD", b"x" * 5000),
    "huge": lambda rig: rig.truncate(b".git/HEAD", 1 << 62),
    "a link to nothing": _link(b"nothing"),
    "a link to itself": _link(b".git"),
    "outside, and nothing there": _file(b"gitdir: ../elsewhere/.git\n"),
    "outside, and no directory": _file(b"gitdir: /dev/null\n"),
    "outside, and no path": _file(b"gitdir: /\0\n"),
    "reftable": lambda rig: rig.save(b".git/HEAD", b"ref: refs/heads/.invalid\n"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_things_are_no_state(
    open_rig: Callable[[], Rig], git: Repository, name: str
) -> None:
    rig = open_rig()
    rig.tree()
    STRANGE[name](rig)
    assert rig.checkpoint().git == NOTHING


@pytest.mark.parametrize(
    "head", [b"", b"\0" * 100, b"ref:", b"ref: ../../x", b"ref: refs/heads/\xff"]
)
def test_a_head_that_leads_nowhere(
    open_rig: Callable[[], Rig], git: Repository, head: bytes
) -> None:
    rig = open_rig()
    rig.save(b".git/HEAD", head)
    assert rig.checkpoint().git.commit == ""


@pytest.mark.parametrize("path", [b".git", b".git/HEAD", b".git/commondir", b".git/packed-refs"])
def test_any_bytes_anywhere(open_rig: Callable[[], Rig], git: Repository, path: bytes) -> None:
    """A checkpoint is made, whatever they are."""
    rig = open_rig()
    rig.unlink(b".git/refs/heads/main")
    words = [b"ref: ", b"gitdir: ", b"refs/heads/", b"/", b"..", b"\0", b"\n", b"\xff", b"main"]
    words += [OTHER.encode(), b" ", os.fsencode(git.top), b".git", b"x" * 300]
    choose = random.Random(path).choice
    if path == b".git":
        rig.remove_tree(b".git")
        rig.create(b".git")
    for _ in range(150):
        rig.save(path, b"".join(choose(words) for _ in range(choose(range(6)))))
        state = rig.checkpoint().git
        assert state.commit in ("", OTHER)


def test_references_in_a_circle(open_rig: Callable[[], Rig], git: Repository) -> None:
    rig = open_rig()
    rig.save(b".git/refs/heads/main", b"ref: refs/heads/other\n")
    rig.save(b".git/refs/heads/other", b"ref: refs/heads/main\n")
    state = rig.checkpoint().git
    assert (state.commit, state.branch) == ("", "main")


def test_what_changed_outside_is_neither_adopted_nor_reported(
    open_rig: Callable[[], Rig], git: Repository, base: Path
) -> None:
    rig = open_rig()
    rig.tree()
    rig.volume.sync()
    (base / ".git" / "HEAD").write_text("ref: refs/heads/elsewhere\n")
    rig.evict()
    assert rig.checkpoint().git == NOTHING
    assert not rig.volume.problems
    assert rig.read(b".git/HEAD") == b"ref: refs/heads/elsewhere\n"
    assert rig.checkpoint().git.branch == "elsewhere"


@pytest.mark.parametrize("absolute", [False, True])
def test_a_worktree_of_a_repository_elsewhere(
    open_rig: Callable[[], Rig], git: Repository, base: Path, tmp_path: Path, absolute: bool
) -> None:
    """Its branch and index are its own, its references those of the repository."""
    shutil.move(base, tmp_path / "main")
    git.top = tmp_path / "main"
    git("worktree", "add", "-q", "-b", "side", base)
    worktree = Repository(base, git.env)
    if not absolute:
        (base / ".git").write_text("gitdir: ../main/.git/worktrees/base\n")
    rig = open_rig()
    assert rig.checkpoint().git == said_by(worktree)
    (base / "more").write_text("")
    worktree("add", "more")
    worktree("commit", "-q", "-m", "more")
    git("pack-refs", "--all")
    record = rig.checkpoint()
    assert record.git == said_by(worktree)
    assert record.git.branch == "side"
    assert rig.restore("0123456789ab").rescue.git == record.git
    rig.unlink(b".git")
    assert rig.checkpoint().git == NOTHING
