"""Git on a mount, and how it finds a repository after a restore."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.calls import Inotify
from tests.support.listing import difference, listing
from tests.support.mounting import Mounted
from tests.tools.tool import SECONDS, environment, need, run

FILES = 200
COMMITS = 30
BAD = 17
"""The commit that breaks what `bisect run` looks for."""

_OLD = 1_500_000_000


def git_environment(home: Path) -> dict[str, str]:
    """Git with an identity and without anyone's settings."""
    who = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "A U Thor"), ("EMAIL", "author@example.com"))
    }
    return environment(home, GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, **who)


class Repository:
    """Runs git in a working tree."""

    def __init__(self, top: Path, env: dict[str, str]) -> None:
        self.top = top
        self.env = env

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        return run(["git", *words], self.top, self.env, code=code, seconds=SECONDS).rstrip("\n")

    def status(self) -> list[str]:
        return self("status", "--porcelain").splitlines()

    def sound(self) -> None:
        """Every object is there, and nothing is wrong with one."""
        assert self("fsck", "--full", "--strict", "--no-dangling", "--no-progress") == ""

    def settle(self) -> None:
        """Make the index certain of every file: none is as young as the index itself."""
        for path in self("ls-files").splitlines():
            os.utime(self.top / path, (_OLD, _OLD))
        assert self.status() == []

    def index(self) -> str:
        """What the index remembers of every file: times, device, inode, owner, size."""
        return self("ls-files", "--debug")

    def opened_by_status(self) -> set[str]:
        """Files of the working tree that `git status` opens: those it hashes. Nothing is dirty."""
        watcher = Inotify()
        try:
            for directory, names, _ in os.walk(self.top):
                if ".git" in names:
                    names.remove(".git")
                watcher.watch(directory, 0x20)  # IN_OPEN
            assert self.status() == []
            opened = set()
            while events := watcher.events():
                opened |= {os.fsdecode(name) for _, name in events}
        finally:
            watcher.close()
        return {name for name in opened if name.endswith(".txt")}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare repository: `main`, and `topic`, whose two commits conflict with it in one file."""
    need("git")
    top = tmp_path_factory.mktemp("origin")
    repository = Repository(top, git_environment(top))
    repository("init", "-q", "--bare", "-b", "main", ".")
    run(["git", "fast-import", "--quiet"], top, repository.env, stdin=_history())
    assert repository("rev-list", "--count", "main") == str(COMMITS)
    return top


def _history() -> bytes:
    """A history for git fast-import."""
    out: list[bytes] = []

    def data(content: bytes) -> bytes:
        return b"data %d\n%s\n" % (len(content), content)

    def commit(branch: str, number: int, parent: str, files: dict[str, bytes]) -> None:
        out.append(b"commit refs/heads/%s\nmark :%d\n" % (branch.encode(), number))
        who = b"A U Thor <author@example.com> %d +0000" % (_OLD + number)
        out.append(b"author %s\ncommitter %s\n" % (who, who))
        out.append(data(b"%s %d" % (branch.encode(), number)))
        if parent:
            out.append(f"from {parent}\n".encode())
        for path, content in files.items():
            out.append(b"M 100644 inline %s\n%s" % (path.encode(), data(content)))

    every = {f"d{n % 10}/f{n}.txt": b"file %d\n" % n * 50 for n in range(FILES)}
    commit("main", 1, "", {**every, "shared.txt": b"a\nb\nc\n", "state.txt": b"good\n"})
    for number in range(2, COMMITS + 1):
        files = {f"d{number % 10}/f{number}.txt": b"changed in %d\n" % number * 50}
        if number == BAD:
            files["state.txt"] = b"bad\n"
        if number == COMMITS:
            files["shared.txt"] = b"a\nmain\nc\n"
        commit("main", number, f":{number - 1}", files)
    commit("topic", 101, f":{COMMITS - 5}", {"shared.txt": b"a\ntopic\nc\n"})
    commit("topic", 102, ":101", {"new.txt": b"new on topic\n"})
    return b"".join(out)


@pytest.fixture
def clone(origin: Path, top: Path, env: dict[str, str], tmp_path: Path) -> Repository:
    """A clone on the mount, its objects sent as over a network, with `main` and `topic`."""
    outside = Repository(tmp_path, git_environment(tmp_path / "home"))
    outside("clone", "-q", "--no-local", "-b", "main", origin, top / "work")
    repository = Repository(top / "work", outside.env)
    repository("branch", "-q", "topic", "origin/topic")
    repository.settle()
    return repository


def test_clone_gc_and_worktrees(
    workspace: Mounted, clone: Repository, origin: Path, tmp_path: Path
) -> None:
    top = workspace.mountpoint
    assert clone("rev-parse", "main") == Repository(origin, clone.env)("rev-parse", "main")
    clone.sound()
    before = listing(top)
    checkpoint = workspace.checkpoint()
    clone("worktree", "add", "-q", top / "tree", "topic")
    tree = Repository(top / "tree", clone.env)
    (tree.top / "more.txt").write_text("more\n")
    tree("add", "-A")
    tree("commit", "-q", "-m", "in the worktree")
    made = tree("rev-parse", "HEAD")
    # A clone on the same file system shares the objects by hard links.
    clone("clone", "-q", "--local", clone.top, top / "linked")
    pack = next((clone.top / ".git/objects/pack").glob("*.pack"))
    assert os.stat(pack).st_nlink == 2
    clone("gc", "-q", "--prune=now")
    clone.sound()
    Repository(top / "linked", clone.env).sound()
    assert tree.status() == []
    assert clone("count-objects").startswith("0 objects")
    after = listing(top)

    workspace.restore(checkpoint)
    assert difference(before, listing(top)) == []
    clone.sound()
    assert clone.status() == []
    assert len(clone("worktree", "list").splitlines()) == 1
    clone("cat-file", "-e", made, code=1)

    workspace.call("undo")
    # git status rewrote nothing: the index was certain of every file.
    assert difference(after, listing(top)) == []
    clone.sound()
    assert tree.status() == []
    assert tree("rev-parse", "HEAD") == made
    assert len(clone("worktree", "list").splitlines()) == 2


def test_rebase_with_a_conflict(workspace: Mounted, clone: Repository) -> None:
    clone("checkout", "-q", "topic")
    tip = clone("rev-parse", "HEAD")
    clone("rebase", "-q", "main", code=1)
    assert clone.status() == ["UU shared.txt"]
    conflict = (clone.top / "shared.txt").read_text()
    assert conflict.startswith("a\n<<<<<<< ")
    middle = workspace.checkpoint("in the middle of a rebase")

    def finish(text: str) -> None:
        (clone.top / "shared.txt").write_text(text)
        clone("add", "shared.txt")
        clone("-c", "core.editor=true", "rebase", "--continue")
        assert clone.status() == []
        assert clone("merge-base", "main", "topic") == clone("rev-parse", "main")
        assert clone("show", "topic:shared.txt") == text.rstrip("\n")
        assert (clone.top / "new.txt").read_text() == "new on topic\n"
        clone.sound()

    finish("a\nmain and topic\nc\n")
    workspace.restore(middle)
    assert clone.status() == ["UU shared.txt"]
    assert (clone.top / "shared.txt").read_text() == conflict
    clone("rebase", "--abort")
    assert clone("rev-parse", "HEAD") == tip
    assert clone.status() == []
    workspace.restore(middle)
    finish("a\nonly topic\nc\n")


def test_stash(workspace: Mounted, clone: Repository) -> None:
    (clone.top / "shared.txt").write_text("staged\n")
    clone("add", "shared.txt")
    (clone.top / "d1" / "f1.txt").write_text("not staged\n")
    (clone.top / "d2" / "f2.txt").unlink()
    (clone.top / "untracked").mkdir()
    (clone.top / "untracked" / "file").write_text("untracked\n")
    dirty = sorted(clone.status())
    assert dirty == [" D d2/f2.txt", " M d1/f1.txt", "?? untracked/", "M  shared.txt"]
    before = workspace.checkpoint()
    clone("stash", "-q", "--include-untracked")
    assert clone.status() == []
    stashed = workspace.checkpoint()
    for _ in range(2):
        clone("stash", "pop", "-q", "--index")
        assert sorted(clone.status()) == dirty
        assert clone("stash", "list") == ""
        assert (clone.top / "d1" / "f1.txt").read_text() == "not staged\n"
        assert (clone.top / "untracked" / "file").read_text() == "untracked\n"
        workspace.restore(stashed)
        assert clone.status() == []
    workspace.restore(before)
    assert sorted(clone.status()) == dirty
    clone.sound()


def test_bisect_run(workspace: Mounted, clone: Repository) -> None:
    checkpoint = workspace.checkpoint()
    clone("bisect", "start", "main", f"main~{COMMITS - 1}")
    said = clone("bisect", "run", "grep", "-q", "good", "state.txt")
    first = clone("rev-parse", f"main~{COMMITS - BAD}")
    assert f"{first} is the first bad commit" in said
    assert clone("rev-parse", "refs/bisect/bad") == first
    workspace.restore(checkpoint)
    assert clone.status() == []
    assert not (clone.top / ".git" / "BISECT_LOG").exists()
    clone.sound()


def test_status_after_a_restore_hashes_nothing(workspace: Mounted, clone: Repository) -> None:
    index, stats = clone.index(), _stats(clone)
    checkpoint = workspace.checkpoint()
    assert clone.status() == []
    assert clone.index() == index

    (clone.top / "shared.txt").write_text("edited\n")
    (clone.top / "d3" / "f3.txt").unlink()
    os.replace(clone.top / "d4" / "f4.txt", clone.top / "d4" / "moved.txt")
    clone("add", "-A")
    clone("commit", "-q", "-m", "to be taken back")
    clone("checkout", "-q", "topic")
    clone("gc", "-q")
    workspace.restore(checkpoint)

    assert clone("rev-parse", "HEAD") == clone("rev-parse", "main")
    assert _stats(clone) == stats
    # The plumbing compares only what stat tells; what differs there has to be hashed.
    assert clone("diff-files") == ""
    assert clone.opened_by_status() == set()
    assert clone.index() == index
    clone.sound()

    (clone.top / "shared.txt").write_text("edited\n")
    assert clone.status() == [" M shared.txt"]


def test_status_after_a_remount_hashes_nothing(
    mount: Callable[..., Mounted], base: Path, origin: Path, tmp_path: Path
) -> None:
    """The repository was there before the workspace: git has to hash it once, and never again."""
    outside = Repository(tmp_path, git_environment(tmp_path / "home"))
    outside("clone", "-q", origin, base / "work")
    clone = Repository(base / "work", outside.env)
    clone.settle()
    first = mount(base)
    assert clone.status() == []
    index = clone.index()
    assert clone.opened_by_status() == set()
    checkpoint = first.checkpoint()
    (clone.top / "shared.txt").write_text("edited\n")
    first.restore(checkpoint)
    first.unmount()
    second = mount(base)
    assert clone("diff-files") == ""
    assert clone.opened_by_status() == set()
    assert clone.index() == index
    clone.sound()
    (clone.top / "d5" / "f5.txt").write_text("edited\n")
    second.restore(checkpoint)
    assert clone("diff-files") == ""
    assert clone.opened_by_status() == set()


def _stats(repository: Repository) -> dict[str, tuple[int, ...]]:
    """What git compares of every tracked file."""
    out: dict[str, tuple[int, ...]] = {}
    for path in repository("ls-files").splitlines():
        st = os.lstat(repository.top / path)
        out[path] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
    return out
