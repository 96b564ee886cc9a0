"""Projects that are git repositories, or hold some."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cases.workspace import Workspace, git, nothing_changes_in, repository
from tests.cli.command import Cowfs
from tests.mount.calls import write_file
from tests.support.listing import difference, listing, portable
from tests.tools.tool import need


@pytest.fixture(autouse=True)
def needs_git() -> None:
    need("git")


def test_case_12_git_in_the_environment(cowfs: Cowfs, project: Path) -> None:
    """`GIT_DIR`, `GIT_INDEX_FILE`, `GIT_WORK_TREE` are set in the environment: the repository
    that they name is untouched, by mounting, every command and the daemon."""
    named = repository(cowfs.top / "named")
    repository(project)
    cowfs.env |= {
        "GIT_DIR": str(named / ".git"),
        "GIT_INDEX_FILE": str(named / ".git/index"),
        "GIT_WORK_TREE": str(named),
        "GIT_OBJECT_DIRECTORY": str(named / ".git/objects"),
    }
    cowfs.in_process = False
    with nothing_changes_in(named):
        space = Workspace(cowfs, project)
        first, here = space.state(), space.checkpoint()
        write_file(space.top / "tracked", b"two\n")
        patch = space.run("diff", "--patch")["patch"]
        assert "-one\n+two\n" in patch
        space.restore(here)
        space.must_be(first)
        space.run("undo")
        space.export(here)
        space.run("log")
        space.unmount()
        space.mount()
        assert (space.top / "tracked").read_bytes() == b"two\n"


def test_case_13_nothing_of_ours_in_the_repository(cowfs: Cowfs, project: Path) -> None:
    """History made by us beside the user's repository: no ref, object or file of ours in it."""
    repository(project)
    plain = listing(project / ".git")
    space = Workspace(cowfs, project)
    with nothing_changes_in(space.top / ".git"):
        first, here = space.state(), space.checkpoint("-m", "message", "--label", "label")
        write_file(space.top / "tracked", b"two\n")
        write_file(space.top / "untracked", b"new\n")
        space.checkpoint()
        space.diff(here)
        space.run("diff", here, "--patch")
        space.show(here, "tracked")
        space.export(here)
        space.restore(here)
        space.must_be(first)
        space.run("undo")
        space.run("redo")
        space.run("undo")
        space.run("log")
    space.unmount()
    assert difference(portable(plain), portable(listing(project / ".git"))) == []
    assert sorted(os.listdir(project)) == [".git", "other", "tracked", "untracked"]
    assert git(project, "for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    assert git(project, "count-objects").startswith("4 objects")
    space.mount()


def test_case_14_several_repositories(cowfs: Cowfs, project: Path) -> None:
    """A folder holding two repositories, a submodule, a worktree, a bare repository, and one with
    a lock file: captured and restored like any files."""
    one, two = repository(project / "one"), repository(project / "two")
    git(project, "clone", "-q", "--bare", one, project / "bare.git")
    git(two, "submodule", "--quiet", "add", project / "bare.git", "module")
    git(two, "commit", "-qm", "with a submodule")
    git(one, "worktree", "add", "-q", "-b", "side", project / "tree")
    write_file(two / ".git/index.lock", b"")
    plain = portable(listing(project))
    space = Workspace(cowfs, project)
    places = [one, two, two / "module", project / "tree"]

    def sound() -> None:
        for place in [*places, project / "bare.git"]:
            assert git(place, "fsck", "--strict", "--no-dangling", "--no-progress") == ""

    assert difference(plain, space.files()) == []
    sound()
    assert git(one, "status", "--porcelain") == ""
    first, here = space.state(), space.checkpoint()
    for place in (one, two / "module", project / "tree"):
        write_file(place / "tracked", b"more\n")
        git(place, "commit", "-qam", "more")
    git(two / "module", "push", "-q", "origin", "HEAD:refs/heads/pushed")
    git(one, "worktree", "remove", "--force", project / "tree")
    os.unlink(two / ".git/index.lock")
    git(two, "add", "module")
    git(two, "commit", "-qm", "newer submodule")
    git(one, "gc", "-q", "--prune=now")
    second, there = space.state(), space.checkpoint()
    for name in os.listdir(project):
        shutil.rmtree(project / name)
    space.restore(here)
    space.must_be(first)
    sound()
    assert (two / ".git/index.lock").exists()
    for place in places:
        # A lock keeps git from refreshing the index, not from reading.
        assert git(place, "--no-optional-locks", "status", "--porcelain") == ""
    assert "side" in git(one, "worktree", "list")
    space.restore(there)
    space.must_be(second)
    assert "more" in git(project / "bare.git", "log", "--format=%s", "pushed")
