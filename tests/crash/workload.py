"""What the workload does: calls chosen by a seed, from the state that it begins with."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from tests.crash.states import Call, State, after

KEPT = b"p"
"""A directory for restores of single paths: it stays, and shares no file with others."""
_SIZES = (1, 100, 3000, 4096, 65536, 70_000)
_MOST_PATHS = 30


class Planner:
    """Chooses calls and follows the state."""

    def __init__(self, state: State, seed: int) -> None:
        self.state = state
        self.calls: list[Call] = []
        self._rng = random.Random(seed)
        self._fresh = itertools.count(self._rng.randrange(1 << 30))

    def run(self, operations: int, rounds: int, *, applies: bool) -> list[Call]:
        """Every kind of operation on history `rounds` times, others in between."""
        history = self._HISTORY + (Planner._apply,) * applies
        chosen = [*history * rounds, *self._rng.choices(self._EDITS, k=operations)]
        self._rng.shuffle(chosen)
        for operation in chosen:
            operation(self)
            if self._rng.random() < 0.2:
                self._fsync()
        return self.calls

    def _do(self, *call: object) -> None:
        self.calls.append(call)
        self.state = after(self.state, call)[-1]

    # -- choosing -------------------------------------------------------------------------------

    def _paths(self, kind: str, *, kept: bool = True) -> list[bytes]:
        tree = self.state.tree
        inside = tree.below(KEPT)
        return [
            path
            for path in sorted(tree.names)
            if path and tree.at(path).kind == kind and (kept or path not in inside)
        ]

    def _file(self) -> bytes:
        files = self._paths("file")
        if not files:
            return self._create()
        return self._rng.choice(files)

    def _name(self, *, kept: bool = True) -> bytes:
        """A path that is free."""
        above = self._rng.choice([b"", *self._paths("directory", kept=kept)])
        name = b"%c%d" % (self._rng.choice(b"abcdef"), next(self._fresh))
        return above + b"/" + name if above else name

    def _data(self) -> bytes:
        """Bytes of which some repeat, so that there are deltas."""
        size = self._rng.choice(_SIZES)
        return (self._rng.randbytes(min(size, 50)) + b"cowfs" * (size // 5 + 1))[:size]

    # -- edits ----------------------------------------------------------------------------------

    def _create(self) -> bytes:
        if len(self.state.tree.names) > _MOST_PATHS:
            self._remove_tree()
        path = self._name()
        self._do("create", path)
        self._do("write", path, 0, self._data())
        return path

    def _append(self) -> None:
        path = self._file()
        self._do("write", path, len(self.state.tree.at(path).content), self._data())

    def _overwrite(self) -> None:
        path = self._file()
        size = len(self.state.tree.at(path).content)
        self._do("write", path, self._rng.randrange(size + 1), self._data())
        self._do("fsync", path)

    def _save(self) -> None:
        """As an editor does: a new file, synced now and then, over the old one."""
        path = self._file()
        new = path + b"~%d" % next(self._fresh)
        self._do("create", new)
        self._do("write", new, 0, self._data())
        if self._rng.random() < 0.5:
            self._do("fsync", new)
        self._do("rename", new, path)

    def _make_tree(self) -> None:
        if len(self.state.tree.names) > _MOST_PATHS:
            self._remove_tree()
        top = self._name()
        for path in (top, top + b"/one", top + b"/one/two"):
            self._do("mkdir", path)
        for path in (top + b"/f", top + b"/one/two/g"):
            self._do("create", path)
            self._do("write", path, 0, self._data())

    def _remove_tree(self) -> None:
        """rm -rf"""
        tops = [path for path in self._paths("directory") if path != KEPT]
        tops = [path for path in tops if len(self.state.tree.below(path)) > 2] or tops
        if not tops:
            return
        for path in reversed(self.state.tree.below(self._rng.choice(tops))):
            is_dir = self.state.tree.at(path).kind == "directory"
            self._do("rmdir" if is_dir else "unlink", path)

    def _unlink(self) -> None:
        self._do("unlink", self._file())

    def _truncate(self) -> None:
        path = self._file()
        size = len(self.state.tree.at(path).content)
        self._do("truncate", path, self._rng.choice((0, size // 2, size + 5000)))

    def _chmod(self) -> None:
        self._do("chmod", self._file(), self._rng.choice((0o600, 0o640, 0o755)))

    def _symlink(self) -> None:
        self._do("symlink", self._name(), b"target%d" % next(self._fresh))

    def _link(self) -> None:
        files = self._paths("file", kept=False)
        if files:
            self._do("link", self._rng.choice(files), self._name(kept=False))

    def _rename(self) -> None:
        things = self._paths("file", kept=False) + self._paths("directory", kept=False)
        if not things:
            return
        path = self._rng.choice(things)
        new = self._name(kept=False)
        if not new.startswith(path + b"/"):
            self._do("rename", path, new)

    def _fsync(self) -> None:
        self._do("fsync", self._file())

    _EDITS: tuple[Callable[[Planner], object], ...] = (
        *(_create,) * 3,
        *(_append,) * 2,
        *(_overwrite,) * 2,
        *(_save,) * 3,
        *(_make_tree,) * 2,
        _remove_tree,
        _unlink,
        *(_truncate,) * 2,
        _chmod,
        _symlink,
        _link,
        *(_rename,) * 2,
    )

    # -- history --------------------------------------------------------------------------------

    def _target(self) -> int:
        return self._rng.randrange(
            max(len(self.state.checkpoints) - 6, 0), len(self.state.checkpoints)
        )

    def _checkpoint(self) -> None:
        self._do("checkpoint")

    def _restore(self) -> None:
        self._do("restore", self._target())

    def _restore_paths(self) -> None:
        self._do("restore-paths", self._target(), KEPT)

    def _undo(self) -> None:
        if self.state.undo:
            self._do("undo")

    def _redo(self) -> None:
        if self.state.redo:
            self._do("redo")

    def _apply(self) -> None:
        """After a change, so that the apply makes a checkpoint, or after a checkpoint."""
        if self._rng.random() < 0.6:
            self._do("create", b"fresh%d" % next(self._fresh))
        else:
            self._do("checkpoint")
        self._do("apply")

    _HISTORY: tuple[Callable[[Planner], object], ...] = (
        _fsync,
        _checkpoint,
        _restore,
        _restore_paths,
        _undo,
        _redo,
    )


def plan(
    state: State, seed: int, operations: int, rounds: int = 1, *, applies: bool = True
) -> list[Call]:
    """The calls of one life, the same for the same state and seed: each operation on history
    `rounds` times, and so many others."""
    return Planner(state, seed).run(operations, rounds, applies=applies)
