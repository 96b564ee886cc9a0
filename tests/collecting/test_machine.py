"""Random histories of which checkpoints are removed: what is kept shows what it did.

Deterministic by default; `scripts/fuzz --kind collect` looks at more, and other, examples.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from cowfs.errors import CowfsError
from cowfs.format import records
from cowfs.store import condensing, packing
from cowfs.store.compaction import compact
from cowfs.store.rewriting import silent
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes
from cowfs.volume.posix import PosixError
from tests.collecting.looking import (
    State,
    check_differences,
    check_nothing_left,
    check_verified,
    collect_garbage,
    forget,
    look,
)
from tests.support.searching import WITHOUT_LIMIT, search
from tests.support.volumes import START, Handle, Rig
from tests.volume.test_machine import make_base

pytestmark = WITHOUT_LIMIT
B = BLOCK_SIZE

picks = st.integers(0, 2) | st.integers(0, 1000)
names = st.sampled_from([b"a", b"b", b"c", b"d"])
offsets = st.sampled_from([0, 1, B - 1, B, 2 * B])
sizes = st.sampled_from([1, 5, B - 1, B + 1])


class Machine(RuleBasedStateMachine):
    """A volume, and what each of its checkpoints showed when it was made."""

    def __init__(self, base: Path, place: Path) -> None:
        super().__init__()
        self.rig = Rig(Path(tempfile.mkdtemp(dir=place)), base)
        self.shown: dict[str, tuple[int, State]] = {}
        self.held: list[tuple[Handle, bytes]] = []

    @initialize()
    def list_all(self) -> None:
        """Everything is in the store, so that states can be read there."""
        self.rig.paths()
        self.rig.volume.sync()
        self.shown[START] = (0, look(self.rig, 0))

    def path(self, pick: int, *, a_file: bool = False, a_directory: bool = False) -> bytes | None:
        found = sorted(
            path
            for path, inode in self.rig.paths().items()
            if (not a_file or inode.is_file) and (not a_directory or inode.is_dir)
        )
        return found[pick % len(found)] if found else None

    # -- edits ----------------------------------------------------------------------------------

    @rule(where=picks, name=names, kind=st.sampled_from("fffds"), size=sizes)
    def create(self, where: int, name: bytes, kind: str, size: int) -> None:
        above = self.path(where, a_directory=True)
        path = above + b"/" + name if above else name
        try:
            if kind == "f":
                self.rig.create(path, b"%d" % size * 3)
            elif kind == "d":
                self.rig.mkdir(path)
            else:
                self.rig.symlink(b"somewhere", path)
        except PosixError:
            pass

    @rule(what=picks)
    def remove(self, what: int) -> None:
        if path := self.path(what):
            self.rig.remove_tree(path)

    @rule(what=picks, where=picks, name=names, link=st.booleans())
    def rename(self, what: int, where: int, name: bytes, link: bool) -> None:
        path, above = self.path(what), self.path(where, a_directory=True)
        new = above + b"/" + name if above else name
        if not path or (above or b"").startswith(path) or new == path:
            return
        try:
            if link:
                self.rig.link(path, new)
            else:
                self.rig.rename(path, new)
        except PosixError:
            pass

    @rule(what=picks, offset=offsets, size=sizes, seed=st.integers(0, 3))
    def write(self, what: int, offset: int, size: int, seed: int) -> None:
        if path := self.path(what, a_file=True):
            data = random.Random(seed).randbytes(size) if seed else bytes(size)
            self.rig.write(path, data, offset)

    @rule(what=picks, size=offsets)
    def truncate(self, what: int, size: int) -> None:
        if path := self.path(what, a_file=True):
            self.rig.truncate(path, size)

    @rule(what=picks, value=st.none() | st.binary(max_size=2))
    def xattr(self, what: int, value: bytes | None) -> None:
        path = self.path(what) or b""
        try:
            if value is None:
                attributes.remove_xattr(self.rig.view, self.rig.at(path), b"user.a")
            else:
                self.rig.setxattr(path, b"user.a", value)
        except PosixError:
            pass

    @rule(what=picks, away=st.booleans())
    def hold(self, what: int, away: bool) -> None:
        """Open a file; it may lose its name."""
        path = self.path(what, a_file=True)
        if path and len(self.held) < 4:
            handle = self.rig.open(path)
            if away:
                self.rig.unlink(path)
            self.held.append((handle, b""))

    @precondition(lambda self: self.held)
    @rule(which=picks, offset=offsets, seed=st.integers(0, 3), cut=st.booleans())
    def write_held(self, which: int, offset: int, seed: int, cut: bool) -> None:
        """Through what is open, with a name or without one."""
        handle = self.held[which % len(self.held)][0]
        if cut:
            handle.truncate(offset)
        else:
            handle.write(offset, random.Random(seed).randbytes(5))

    @precondition(lambda self: self.held)
    @rule()
    def let_go(self) -> None:
        self.held.pop()[0].close()

    # -- history --------------------------------------------------------------------------------

    def _note(self) -> None:
        """Look at the checkpoints that are new."""
        self.rig.volume.sync()
        for value in self._stored().values():
            if value.id not in self.shown:
                self.shown[value.id] = (value.epoch, look(self.rig, value.epoch))

    def _stored(self) -> dict[str, records.CheckpointRecord]:
        scan = self.rig.volume.reader.scan("checkpoint")
        return {
            key.decode(): records.decode(value, records.CheckpointRecord) for key, value in scan
        }

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()
        self._note()

    @rule(which=picks)
    def restore(self, which: int) -> None:
        chosen = list(self.shown)[-1 - which % len(self.shown)]
        self.rig.restore(chosen)
        assert look(self.rig, self.rig.volume.branch.head) == self.shown[chosen][1]
        self._note()

    @rule(which=picks, what=st.lists(picks, min_size=1, max_size=2))
    def restore_paths(self, which: int, what: list[int]) -> None:
        chosen = list(self.shown)[-1 - which % len(self.shown)]
        then = self.shown[chosen][1]
        paths = [sorted(then)[pick % len(then)] for pick in what]
        try:
            self.rig.restore_paths(chosen, paths)
        except CowfsError:
            return
        now = look(self.rig, self.rig.volume.branch.head)
        for path in paths:
            assert _below(now, path) == _below(then, path), path
        self._note()

    @rule(redo=st.booleans())
    def undo(self, redo: bool) -> None:
        branch = self.rig.volume.branch
        if stack := branch.redo if redo else branch.undo:
            (self.rig.redo if redo else self.rig.undo)()
            assert look(self.rig, self.rig.volume.branch.head) == self.shown[stack[-1]][1]
            self._note()

    @rule()
    def restart(self) -> None:
        self.held.clear()
        self.rig.reopen()

    @rule()
    def compact(self) -> None:
        """Blocks become parts of segments, records are condensed, whether it pays or not."""
        self.held.clear()
        self.rig.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "SMALL", 1 << 20)
            patch.setattr(condensing, "_WORTH", 0)
            compact(self.rig.store, silent)
        self.rig.start()
        self._check()

    # -- garbage --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.shown) > 1)
    @rule(which=st.lists(picks, min_size=1, max_size=6))
    def forget(self, which: list[int]) -> None:
        ids = [name for name in self.shown if name != START]
        gone = {ids[pick % len(ids)] for pick in which}
        forget(self.rig, gone)
        for name in gone:
            del self.shown[name]
        assert self._stored().keys() == self.shown.keys()
        self._check()

    @rule(most=st.sampled_from([1, 2, 3, 5, 100, 100]), crash=st.booleans())
    def collect(self, most: int, crash: bool) -> None:
        self.rig.volume.sync()
        now = self.rig.tree()
        held = [handle.read() for handle, _ in self.held]
        done = collect_garbage(self.rig, most)
        assert self.rig.tree() == now
        assert [handle.read() for handle, _ in self.held] == held
        if crash:
            self.held.clear()
            self.rig.crash()
            self.rig.start()
        self._check()
        if done.complete and not done.left and not crash:
            epochs = [epoch for epoch, _ in self.shown.values()]
            check_nothing_left(self.rig, epochs, [handle for handle, _ in self.held])

    def _check(self) -> None:
        """Every kept checkpoint shows what it did, and they differ as they did."""
        check_verified(self.rig)
        for name, (epoch, state) in self.shown.items():
            assert look(self.rig, epoch) == state, name
        check_differences(self.rig, dict(self.shown.values()))

    def teardown(self) -> None:
        self.rig.finish(check=False)


def _below(state: State, top: bytes) -> dict[bytes, object]:
    """What a state shows at and below a path, but for what a restore of paths may do otherwise."""
    return {
        path: (shown.record.mode, shown.record.mtime, shown.xattrs, shown.content)
        for path, shown in state.items()
        if not top or path == top or path.startswith(top + b"/")
    }


def test_what_is_kept_never_changes(base: Path, fast_path: Path) -> None:
    make_base(base)
    search(Machine, base, fast_path, examples=60, steps=40)
