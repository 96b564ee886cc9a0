"""`cowfs git` on a mounted project: what it must not touch, and what goes on meanwhile."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.tools.test_git import Repository, git_environment
from tests.tools.tool import need

HOOKS = (
    "reference-transaction",
    "post-commit",
    "pre-commit",
    "post-update",
    "post-checkout",
    "post-index-change",
    "pre-auto-gc",
)


@pytest.fixture
def git(cowfs: Cowfs, project: Path) -> Repository:
    """A repository in the project, with hooks that leave a mark."""
    need("git")
    repository = Repository(project, git_environment(cowfs.home))
    cowfs.env |= {name: value for name, value in repository.env.items() if name.startswith("GIT_")}
    repository("init", "-q", "-b", "main")
    (project / ".gitignore").write_text("*.o\n")
    (project / "main.o").write_text("object")
    repository("add", ".")
    repository("commit", "-q", "-m", "one")
    for name in HOOKS:
        hook = project / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {cowfs.top}/hook-ran\n")
        hook.chmod(0o755)
    return repository


def state(git: Repository) -> dict[str, object]:
    """What must stay as it is, byte for byte."""
    return {
        "index": hashlib.sha256((git.top / ".git/index").read_bytes()).hexdigest(),
        "index's time": os.stat(git.top / ".git/index").st_mtime_ns,
        "HEAD": (git.top / ".git/HEAD").read_bytes(),
        "branches": {line for line in git("for-each-ref").splitlines() if "cowfs" not in line},
        "config": (git.top / ".git/config").read_bytes(),
        "files": sorted(path for path in os.listdir(git.top)),
    }


def test_nothing_of_the_user_is_touched(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    (mounted / "src" / "main.c").write_text("staged\n")
    git("add", "src")
    (mounted / "src" / "main.c").write_text("not staged\n")
    made = cowfs.ok("checkpoint", "-m", "changed")["checkpoint"]["id"]
    before = state(git)
    (cowfs.top / "hook-ran").unlink(missing_ok=True)
    document = cowfs.ok("git", "export")
    assert state(git) == before
    cowfs.ok("git", "notes")
    assert state(git) == before
    assert not (cowfs.top / "hook-ran").exists()
    assert document["repository"] == str(mounted / ".git")
    assert document["commits"][-1] == {"checkpoint": made, "commit": document["commit"]}
    assert git("rev-parse", "cowfs/main") == document["commit"]
    assert git("show", "cowfs/main:src/main.c") == "not staged"
    names = git("ls-tree", "-r", "--name-only", "cowfs/main").splitlines()
    assert names == [".gitignore", "readme", "src/main.c"]
    git.sound()
    again = cowfs.ok("git", "export")
    assert (again["commits"], again["commit"]) == ([], document["commit"])
    assert cowfs.says("git", "export") == "cowfs/main is up to date\n"


def test_an_environment_that_leads_elsewhere(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    cowfs.env |= {
        "GIT_DIR": "/nowhere",
        "GIT_INDEX_FILE": str(cowfs.top / "an-index"),
        "GIT_WORK_TREE": "/",
        "GIT_OBJECT_DIRECTORY": "/nowhere",
        "GIT_CEILING_DIRECTORIES": str(cowfs.top),
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_TRACE": str(cowfs.top / "trace"),
    }
    document = cowfs.ok("git", "export")
    assert git("rev-parse", "cowfs/main") == document["commit"]
    assert not (cowfs.top / "an-index").exists()
    assert not (cowfs.top / "trace").exists()


def test_what_the_log_says_of_git(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    commit = git("rev-parse", "HEAD")
    cowfs.ok("checkpoint", "-m", "on one")
    git("checkout", "-q", "-b", "topic")
    git("commit", "-q", "--allow-empty", "-m", "two")
    cowfs.ok("checkpoint", "-m", "on two")
    git("checkout", "-q", "--detach")
    cowfs.ok("checkpoint", "-m", "detached")
    two = git("rev-parse", "HEAD")
    rows = {row["message"]: row["git"] for row in cowfs.ok("log")["checkpoints"]}
    assert (rows["on one"]["commit"], rows["on one"]["branch"]) == (commit, "main")
    assert (rows["on two"]["commit"], rows["on two"]["branch"]) == (two, "topic")
    assert (rows["detached"]["commit"], rows["detached"]["branch"]) == (two, "")
    index = os.stat(mounted / ".git" / "index")
    assert rows["detached"]["index_size"] == index.st_size
    assert rows["detached"]["index_mtime"] == index.st_mtime_ns
    said = cowfs.says("log")
    assert f"on one (main {commit[:7]})\n" in said
    assert f"on two (topic {two[:7]})\n" in said
    assert f"detached ({two[:7]})\n" in said


def test_a_workspace_that_is_a_worktree(cowfs: Cowfs, git: Repository, needs_fuse: None) -> None:
    """Of a repository that is not in the workspace: the export goes there."""
    work = Repository(cowfs.top / "work", git.env)
    git("worktree", "add", "-q", "-b", "topic", work.top)
    cowfs.ok("mount", work.top)
    (work.top / "readme").write_text("new\n")
    made = cowfs.ok("checkpoint", cwd=work.top)["checkpoint"]
    assert (made["git"]["commit"], made["git"]["branch"]) == (work("rev-parse", "HEAD"), "topic")
    document = cowfs.ok("git", "export", cwd=work.top)
    assert git("rev-parse", "cowfs/main") == document["commit"]
    assert git("show", "cowfs/main:readme") == "new"
    assert ".git" not in git("ls-tree", "--name-only", "cowfs/main").splitlines()
    assert cowfs.ok("git", "notes", cwd=work.top)["written"] == 1


def test_notes_link_commits_to_checkpoints(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    one = git("rev-parse", "HEAD")
    made = []
    for number in range(3):
        (mounted / "readme").write_text(f"{number}\n")
        made.append(cowfs.ok("checkpoint")["checkpoint"]["id"])
    git("notes", "--ref=cowfs", "add", "-m", "mine", one)
    git("notes", "--ref=other", "add", "-m", "elsewhere", one)
    git("commit", "-q", "-a", "-m", "two")
    first = cowfs.ok("git", "notes")
    assert (first["ref"], first["written"]) == ("refs/notes/cowfs", 1)
    note = git("notes", "--ref=cowfs", "show", one).splitlines()
    assert note[0] == "mine"
    assert f"Cowfs-Last: {made[-1]}" in note
    assert any(line.startswith("Cowfs-First: ") for line in note)
    last = cowfs.ok("checkpoint")["checkpoint"]["id"]
    again = cowfs.ok("git", "notes")
    assert (again["written"], again["unchanged"]) == (1, 1)
    assert f"Cowfs-Last: {last}" in git("notes", "--ref=cowfs", "show", "HEAD").splitlines()
    assert cowfs.ok("git", "notes")["written"] == 0
    assert git("notes", "--ref=other", "show", one) == "elsewhere"
    git.sound()


_COMMITS = """
set -e
for i in $(seq 25); do
    echo $i > file$i
    git add file$i
    git commit -q -m $i
done
"""


def test_while_the_user_commits(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    """Both go on as if they were alone."""
    (mounted / ".git" / "hooks").rename(mounted / ".git" / "no-hooks")
    cowfs.in_process = True
    with subprocess.Popen(["sh", "-c", _COMMITS], cwd=mounted, env=git.env) as process:
        while process.poll() is None:
            cowfs.ok("checkpoint")
            cowfs.ok("git", "export")
    assert process.returncode == 0
    cowfs.ok("checkpoint")
    cowfs.ok("git", "export")
    assert int(git("rev-list", "--count", "main")) == 26
    assert git("status", "--porcelain") == ""
    assert git("rev-parse", "main^{tree}") == git("rev-parse", "cowfs/main^{tree}")
    git.sound()


def test_killed_in_the_middle(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    cowfs.in_process = True
    for number in range(60):
        (mounted / "readme").write_text(f"{number}\n" * 1000)
        cowfs.ok("checkpoint")
    before = state(git)
    temporary = cowfs.top / "temporary"
    temporary.mkdir()
    cowfs.env["TMPDIR"] = str(temporary)
    for killed in range(4):
        with cowfs.start(
            "git", "export", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            watched = mounted / ".git" / "objects" / "pack"
            while process.poll() is None:
                if killed == 3 or any("tmp_pack" in name for name in os.listdir(watched)):
                    process.send_signal(signal.SIGKILL)
                    break
        assert state(git) == before
        git.sound()
    (mounted / "readme").write_text("last\n")
    cowfs.ok("checkpoint")
    cowfs.in_process = False
    document = cowfs.ok("git", "export")
    assert list(temporary.iterdir()) == []
    assert int(git("rev-list", "--count", "cowfs/main")) == cowfs.ok("log")["total"]
    assert git("rev-parse", "cowfs/main") == document["commit"]
    git.sound()


def test_without_a_mount_and_elsewhere(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    (mounted / "readme").write_text("new\n")
    cowfs.ok("checkpoint")
    other = Repository(cowfs.top / "other.git", git.env)
    other.top.mkdir()
    other("init", "-q", "--bare")
    first = cowfs.ok("git", "export", "--repo", other.top)
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    inside = cowfs.ok("git", "export", cwd=mounted)
    assert inside["repository"] == str(mounted / ".git")
    made = {row["checkpoint"]: row["commit"] for row in inside["commits"]}
    assert made.items() >= {r["checkpoint"]: r["commit"] for r in first["commits"]}.items()
    assert other("show", "cowfs/main:readme") == "new"
    other("symbolic-ref", "HEAD", "refs/heads/cowfs/main")
    other.sound()


def test_what_is_no_repository(cowfs: Cowfs, mounted: Path) -> None:
    need("git")
    cowfs.in_process = True
    assert cowfs.fails("git")["message"] == "missing command"
    for arguments in (["git", "export"], ["git", "notes"], ["git", "export", "--repo", "/nowhere"]):
        error = cowfs.fails(*arguments)
        assert (error["code"], error["exit_code"]) == ("COWFS_GIT_REPOSITORY", 61)
    cowfs.env["PATH"] = str(cowfs.top / "empty")
    assert cowfs.fails("git", "export")["code"] == "COWFS_GIT_UNAVAILABLE"


def test_in_a_dead_mount(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    """There git finds no repository; to make one there would not help."""
    ((_, store),) = cowfs.mounts()
    cowfs.kill(store)
    for command in ("export", "notes"):
        error = cowfs.fails("git", command)
        assert (error["code"], error["exit_code"]) == ("COWFS_DAEMON_UNREACHABLE", 29)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_repository_of_somebody_else(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    other = cowfs.top / "other"
    subprocess.run(["git", "init", "-q", other], check=True, env=git.env)
    for path in (other, other / ".git"):
        os.chown(path, 12345, 12345)
    error = cowfs.fails("git", "export", "--repo", other)
    assert error["code"] == "COWFS_GIT_REPOSITORY"
    assert f"safe.directory {other}" in error["hint"]


def test_a_branch_that_is_checked_out(cowfs: Cowfs, git: Repository, mounted: Path) -> None:
    error = cowfs.fails("git", "export", "--branch", "main")
    assert (error["code"], error["exit_code"]) == ("COWFS_GIT_BRANCH", 62)
