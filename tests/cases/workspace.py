"""A project that is mounted and driven as a user does it: with the `cowfs` command."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cowfs.service.workspace import reading
from tests.cli.command import Cowfs
from tests.mount.calls import eventually
from tests.mount.states import State, assert_same, state_of
from tests.support.listing import Listing, listing, portable
from tests.tools.tool import environment, run

Changes = list[tuple[str, str]]


class Workspace:
    """One project. `top`: its directory, which is the mount while it is mounted in place.

    at: where it is mounted instead of over itself. store: where the history is, None for the
    default place.
    """

    def __init__(
        self, cowfs: Cowfs, base: Path, at: Path | None = None, store: Path | None = None
    ) -> None:
        self.cowfs = cowfs
        self.base = base
        self.top = base if at is None else at
        self._options: list[str | Path] = []
        if at is not None:
            self._options += ["--at", at]
        if store is not None:
            self._options += ["--store", store]
        self.store = Path()
        self.mount()

    # -- commands -------------------------------------------------------------------------------

    def mount(self) -> None:
        document = self.cowfs.ok("mount", self.base, *self._options, cwd=self.cowfs.top)
        self.store = Path(document["store"])

    def unmount(self, *options: str) -> Any:
        return self.cowfs.ok("unmount", self.base, *options, cwd=self.cowfs.top)

    def remount(self) -> None:
        """Another life of the daemon; the base directory gets all that was done."""
        self.unmount()
        self.mount()

    def run(self, command: str, *arguments: str | Path) -> dict[str, Any]:
        """A command that succeeds; its document."""
        return self.cowfs.ok(command, *arguments, cwd=self.top)

    def checkpoint(self, *options: str) -> str:
        """The id of a new one."""
        return str(self.run("checkpoint", *options)["checkpoint"]["id"])

    def restore(self, selector: str, *arguments: str) -> str:
        """Go there; returns the id of the checkpoint of the state before."""
        return str(self.run("restore", selector, *arguments)["rescue"]["id"])

    def preview(self, selector: str) -> Changes:
        """(status, path) of what a restore would do."""
        return changes(self.run("restore", selector, "--dry-run"))

    def diff(self, *arguments: str) -> Changes:
        return changes(self.run("diff", *arguments))

    def show(self, selector: str, path: str) -> bytes:
        result = self.cowfs.run("show", f"{selector}:{path}", cwd=self.top)
        assert result.code == 0, result
        return result.raw

    def export(self, selector: str) -> Path:
        """A directory with the whole state as plain files; nothing may be missing."""
        number = len(list(self.cowfs.top.glob("exported*")))
        to = self.cowfs.top / f"exported{number}"
        assert self.run("export", selector, to)["problems"] == []
        return to

    def checkpoints(self) -> list[dict[str, Any]]:
        """All of them, newest first."""
        found: list[dict[str, Any]] = self.run("log", "-n", "0")["checkpoints"]
        return found

    def counts(self) -> dict[str, int]:
        """How much was created, modified, deleted since the last checkpoint."""
        found: dict[str, int] = self.run("status")["changes"]
        return found

    # -- looking --------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that can be seen of the tree."""
        return state_of(self.top)

    def must_be(self, right: State, *, but_ctime_of: tuple[str, ...] = ()) -> None:
        assert_same(self.state(), right, but_ctime_of=but_ctime_of)

    def files(self) -> Listing:
        """The tree, comparable with plain files elsewhere."""
        return portable(listing(self.top))

    def wait_until_imported(self) -> None:
        """Return when the background walk over the base is done."""
        eventually(lambda: bool(self.run("status")["import"]["complete"]))

    def records(self) -> Counter[str]:
        """How many records each table of the store has, all that was done included."""
        self.run("log", "-n", "1")  # commits all, as every command does that reads the store
        with reading(self.store, None) as opened:
            tables = opened.store.tables
            return Counter({name: sum(1 for _ in opened.reader.scan(name)) for name in tables})

    def pid(self) -> int:
        """The daemon's."""
        return self.cowfs.pid(self.store)


def changes(document: dict[str, Any]) -> Changes:
    """(status, path) of the changes that a command lists."""
    return [(row["status"], row["path"]) for row in document["changes"]]


def shell(cwd: Path, script: str) -> None:
    """What an agent's shell tool does."""
    run(["sh", "-ec", script], cwd, environment(cwd))


def git(top: Path, *words: str | Path) -> str:
    """Git with an identity and without anyone's settings; what it prints."""
    who = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "A U Thor"), ("EMAIL", "author@example.com"))
    }
    env = environment(top, GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, **who)
    common = [
        "-c",
        "init.defaultBranch=main",
        "-c",
        "gc.auto=0",
        "-c",
        "protocol.file.allow=always",
    ]
    return run(["git", *common, *words], top, env)


def repository(top: Path) -> Path:
    """A new repository with two files and one commit."""
    top.mkdir(parents=True, exist_ok=True)
    git(top, "init", "-q")
    (top / "tracked").write_text("one\n")
    (top / "other").write_text("other\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "first")
    return top


@contextmanager
def nothing_changes_in(directory: Path) -> Iterator[None]:
    """The tree at `directory` is the same after the block, inode numbers and ctimes included."""
    right = state_of(directory)
    yield
    assert_same(state_of(directory), right)
