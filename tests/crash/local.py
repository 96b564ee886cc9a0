"""A workspace without FUSE, through its life: opened as the daemon opens it, worked on, ended."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import Any

from cowfs.daemon.process import finish_apply
from cowfs.service.apply import apply
from cowfs.service.collecting import Pace
from cowfs.service.shrinking import shrink
from cowfs.service.workspace import open_for_writing
from cowfs.volume import attributes, namespace
from tests.crash.knowledge import Found, checkpoint_ids, view_of_base
from tests.crash.states import Call, Node, Shown, View
from tests.support.volumes import AUTHOR, DIRECTORY, FILE, Rig


class Life(Rig):
    """One life of a workspace. Fails where the workspace reports a problem."""

    def start(self) -> None:
        assert self.base is not None
        self.volume = open_for_writing(self.store, str(self.base), self.base_fd)
        self.is_open = True
        finish_apply(self.volume)
        self._healthy()

    def _healthy(self) -> None:
        if self.volume.problems:
            raise AssertionError(f"the workspace reports {list(self.volume.problems)}")
        if self.volume.external.adoption.adopting:
            raise AssertionError("something was adopted, and nobody changed the base")

    def found(self) -> Found:
        """Everything that it shows."""
        assert self.base_fd is not None
        view, branch = self._view(), self.volume.branch
        self._healthy()
        ids = checkpoint_ids(self.volume.reader)
        return Found(view, view_of_base(self.base_fd), ids, branch.undo, branch.redo)

    def _view(self) -> View:
        first: dict[int, bytes] = {}
        out: View = {}
        for path, inode in sorted(self.paths().items()):
            facts = self.facts(inode)
            kind = {0o100: "file", 0o040: "directory", 0o120: "symlink"}[facts.mode >> 9]
            mode = 0o777 if kind == "symlink" else stat.S_IMODE(facts.mode)
            known = first.setdefault(facts.ino, path)
            out[path] = Shown(Node(kind, mode, facts.content), known)
        return out

    def do(self, call: Call, ids: list[str]) -> None:
        """Make a call; `ids` of all checkpoints are brought up to date."""
        name, *arguments = call
        if name in self._CALLS:
            getattr(self, self._CALLS[name])(*arguments)
        elif name == "fsync":
            self.fsync()
        else:
            self._history(name, arguments, ids)
            ids[:] = checkpoint_ids(self.volume.reader)

    def _create(self, path: bytes, mode: int = FILE) -> None:
        self.create(path, mode=mode, uid=os.getuid(), gid=os.getgid())

    _CALLS = {
        name: name.replace("write", "_write_at")
        for name in ("link", "unlink", "rmdir", "rename", "truncate", "write")
    } | {"create": "_create", "mkdir": "_mkdir", "symlink": "_symlink", "chmod": "_chmod"}

    def fsync(self) -> None:
        self.volume.sync()

    def _write_at(self, path: bytes, offset: int, data: bytes) -> None:
        self.write(path, data, offset)

    def _mkdir(self, path: bytes) -> None:
        self._create(path, DIRECTORY)

    def _symlink(self, path: bytes, target: bytes) -> None:
        parent, name = self.place(path)
        mode = stat.S_IFLNK | 0o777
        namespace.create(self.view, parent, name, mode, os.getuid(), os.getgid(), target=target)

    def _chmod(self, path: bytes, mode: int) -> None:
        inode = self.at(path)
        attributes.set_attributes(self.view, inode, mode=stat.S_IFMT(inode.mode) | mode)

    def _history(self, name: str, arguments: list[Any], ids: list[str]) -> None:
        if name == "restore":
            self.restore(ids[arguments[0]])
        elif name == "restore-paths":
            self.restore_paths(ids[arguments[0]], [arguments[1]])
        elif name == "apply":
            done = apply(self.engine, AUTHOR, lambda **_: None)
            if done.problems:
                raise AssertionError(f"apply could not do {done.problems}")
        else:  # checkpoint, undo, redo
            getattr(self, name)()
        self._healthy()

    def tick(self, rng: random.Random) -> None:
        """Now and then what a daemon's timer does, and its collector."""
        if rng.random() < 0.3:
            self.volume.quiesce()
        self.volume.reap()
        if rng.random() < 0.2:
            shrink(self.engine, Pace(), lambda **_: None)


def make_base(base: Path) -> None:
    """A directory with something in it that is not in the store: what lazy import is for."""
    os.umask(0o022)
    base.mkdir()
    for directory in ("p", "p/q", "d", "d/e"):
        (base / directory).mkdir()
    for number, name in enumerate(("p/a", "p/q/b", "d/c", "d/e/f", "top")):
        (base / name).write_bytes(b"%d base " % number * (number * 6000 + 1))
    os.link(base / "d/c", base / "d/linked")
    os.symlink("top", base / "symbolic")
