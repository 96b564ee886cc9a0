"""Random histories in which volatile paths of old checkpoints are thinned: outside of these what is
kept shows what it did; in them a file shows what it did, or that it is thinned.

Deterministic by default; `scripts/fuzz --kind thin` looks at more, and other, examples.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from cowfs.errors import ThinnedError
from cowfs.format import codec, keys, records
from cowfs.service.collecting import Thinning
from cowfs.service.volatile import matches
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.types import BLOCK_SIZE
from cowfs.volume.posix import PosixError
from tests.collecting.looking import THINNED, State, collect_garbage, look
from tests.collecting.test_machine import Machine, names, offsets, picks
from tests.support.searching import EXAMPLES, WITHOUT_LIMIT, search
from tests.volume.test_machine import make_base

pytestmark = WITHOUT_LIMIT
PATTERNS = (b"a", b"b/c")
"""Any `a`, at any depth, and one place."""


class Thinned(Machine):
    """shown: what each checkpoint shows, thinned contents being `THINNED`. given_up: extents that
    were thinned."""

    given_up = 0

    @initialize()
    def list_all(self) -> None:
        """And there is something to thin from the start."""
        super().list_all()
        self.rig.mkdir(b"made")
        self.rig.mkdir(b"made/a")
        for path in (b"made/a/b", b"made/a/c", b"made/b"):
            self.rig.create(path, path)
        self.checkpoint()

    def _files(self) -> list[bytes]:
        return sorted(path for path, inode in self.rig.paths().items() if inode.is_file)

    def _volatile_files(self) -> list[bytes]:
        return [path for path in self._files() if matches(path, PATTERNS)]

    @rule(what=st.lists(picks, min_size=1, max_size=4), offset=offsets, seed=st.integers(1, 9))
    def build(self, what: list[int], offset: int, seed: int) -> None:
        """What is volatile is written anew, or something else, a part or as a whole; and each time
        a checkpoint."""
        for place, pick in enumerate(what):
            if found := self._volatile_files() if (seed + place) % 3 else self._files():
                path, content = found[pick % len(found)], random.Random(seed).randbytes(seed * 9000)
                if offset:
                    self.rig.write(path, content, offset - 1)
                else:
                    self.rig.save(path, content)
            self.checkpoint()

    @rule(what=picks, where=picks, name=names, link=st.booleans(), removed=st.booleans())
    def carry(self, what: int, where: int, name: bytes, link: bool, removed: bool) -> None:
        """A volatile thing goes elsewhere, or gets a name there; and a checkpoint."""
        if found := self._volatile_files():
            path = found[what % len(found)]
            if removed:
                self.rig.unlink(path)
            else:
                above = self.path(where, a_directory=True)
                new = above + b"/" + name if above else name
                with contextlib.suppress(PosixError):
                    (self.rig.link if link else self.rig.rename)(path, new)
        self.checkpoint()

    def _old(self) -> list[str]:
        """Checkpoints that may be thinned, oldest first."""
        branch = self.rig.volume.branch
        never = {*branch.undo, *branch.redo}
        stored = self._stored()
        found = [stored[name] for name in self.shown if name in stored and name not in never]
        found = [record for record in found if record.epoch and record.kind != "rescue"]
        return [record.id for record in sorted(found, key=lambda record: record.epoch)]

    @precondition(lambda self: len(self.shown) > 2)
    @rule()
    def thin_all(self) -> None:
        """All that may be."""
        self._thin(None, 100, crash=False)

    @precondition(lambda self: len(self.shown) > 2)
    @rule(
        which=st.lists(picks, min_size=1, max_size=4),
        most=st.sampled_from([1, 2, 100]),
        crash=st.booleans(),
    )
    def thin(self, which: list[int], most: int, crash: bool) -> None:
        """Some."""
        self._thin(which, most, crash=crash)

    def _thin(self, which: list[int] | None, most: int, *, crash: bool) -> None:
        self.rig.volume.sync()
        old = self._old()
        if which is not None and old:
            old = [old[pick % len(old)] for pick in which]
        epochs = frozenset(self.shown[name][0] for name in old)
        now = self.rig.tree()
        held = [handle.read() for handle, _ in self.held]
        done = collect_garbage(self.rig, most, Thinning(epochs, PATTERNS))
        self.given_up += done.extents
        assert self.rig.tree() == now
        assert [handle.read() for handle, _ in self.held] == held
        if crash:
            self.held.clear()
            self.rig.crash()
            self.rig.start()
        for name, (epoch, before) in self.shown.items():
            after = look(self.rig, epoch)
            _check_thinned(before, after, allowed=name in old)
            self.shown[name] = epoch, after
        self._check()
        if done.complete and not done.left and not crash:
            self._check_complete(epochs)

    def _check(self) -> None:
        super()._check()
        for name, record in self._stored().items():
            assert bool(record.thinned) == self._is_thinned(name), name

    def _is_thinned(self, name: str) -> bool:
        return any(shown.content == THINNED for shown in self.shown[name][1].values())

    def _check_complete(self, old: frozenset[int]) -> None:
        """Each block that an old state has in a volatile file is one that something else needs: a
        state that is not old, or a file of one that has a name elsewhere."""
        with Reader(self.rig.volume.store) as reader:
            branch = self.rig.volume.branch
            parent = reader.epoch(branch.head).parent
            present = {0, branch.applied, parent}
            needed: set[bytes] = set()
            volatile: set[bytes] = set()
            for epoch in {*present, *(epoch for epoch, _ in self.shown.values())}:
                snapshot = Snapshot(reader, reader.lineage(epoch))
                for content, elsewhere in _files(snapshot):
                    free = epoch in old - present and not elsewhere
                    (volatile if free else needed).update(_extents(snapshot, content))
            # The open epoch may take back what it did: it needs all that the state before it has.
            before = Snapshot(reader, reader.lineage(parent))
            for content, _ in _files(Snapshot(reader, reader.lineage(branch.head))):
                needed |= _extents(before, content)
            assert volatile <= needed

    @rule(which=picks, thinned=st.booleans())
    def restore(self, which: int, thinned: bool) -> None:
        """It is refused if a file would come back that is thinned; nothing is changed then."""
        among = [name for name in self.shown if thinned and self._is_thinned(name)]
        among = among or list(self.shown)
        chosen = among[-1 - which % len(among)]
        before = self.rig.tree()
        try:
            self.rig.restore(chosen)
        except ThinnedError as error:
            path = str(error.details["path"]).encode("utf-8", "surrogateescape")
            assert self.shown[chosen][1][path].content == THINNED
            assert self.rig.tree() == before
            self.rig.volume.sync()
            assert self._stored().keys() == self.shown.keys()
            return
        assert look(self.rig, self.rig.volume.branch.head) == self.shown[chosen][1]
        self._note()

    def _note(self) -> None:
        known = set(self.shown)
        super()._note()
        for name in self.shown.keys() - known:
            assert not self._is_thinned(name)


def _check_thinned(before: State, after: State, *, allowed: bool) -> None:
    """What a state shows after a run, but for what it may have lost."""
    volatile = _volatile(before)
    assert before.keys() == after.keys()
    for path, shown in before.items():
        if after[path] != shown:
            assert allowed, path
            assert shown.ino in volatile, path
            assert after[path] == shown._replace(content=THINNED), path


def _volatile(state: State) -> set[int]:
    """The files all of whose names are in volatile paths."""
    elsewhere = {shown.ino for path, shown in state.items() if not matches(path, PATTERNS)}
    return {shown.ino for shown in state.values()} - elsewhere


def _files(snapshot: Snapshot) -> list[tuple[int, bool]]:
    """(content, whether it has a name that is not volatile, or may have one) of each file."""
    found = []
    pending, names = [(b"", 1)], dict[int, list[bytes]]()
    while pending:
        path, ino = pending.pop()
        names.setdefault(ino, []).append(path)
        record = snapshot.inode(ino)
        assert record is not None
        if records.kind_of(record.mode) == 4:
            for name, below, _ in snapshot.entries(ino):
                pending.append((path + b"/" + name if path else name, below))
    for ino, paths in names.items():
        record = snapshot.inode(ino)
        assert record is not None
        unknown = bool(record.flags & records.INODE_EXTERNAL_LINKS)
        outside = any(not matches(path, PATTERNS) for path in paths)
        found.append((record.content, unknown or outside))
    return found


def _extents(snapshot: Snapshot, content: int) -> set[bytes]:
    """The keys of the extents with a block of their own, without those of the base."""
    found = set()
    for number, _ in snapshot.extents(content):
        prefix = keys.extent_prefix(content, number)
        seen = snapshot.newest("extent", prefix)
        if seen is not None and seen[0] and len(seen[1]) == codec.HASH_SIZE:
            found.add(prefix + keys.inverted(seen[0]))
    return found


def test_what_is_kept_shows_what_it_did_or_that_it_is_thinned(base: Path, fast_path: Path) -> None:
    make_base(base)
    search(Thinned, base, fast_path, examples=15, steps=40)


@pytest.mark.parametrize("seed", range(EXAMPLES or 8))
def test_much_is_thinned(base: Path, fast_path: Path, seed: int) -> None:
    """The same steps, but mostly those that matter here."""
    make_base(base)
    rng, machine = random.Random(seed), Thinned(base, fast_path)

    def pick() -> int:
        return rng.randrange(1000)

    def flip() -> bool:
        return rng.random() < 0.5

    def some() -> list[int]:
        return [pick() for _ in range(rng.randrange(1, 4))]

    def offset() -> int:
        return rng.choice((0, 1, BLOCK_SIZE, 2 * BLOCK_SIZE))

    def name() -> bytes:
        return rng.choice((b"a", b"b", b"c", b"d"))

    steps: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: machine.build(what=some(), offset=offset(), seed=rng.randrange(1, 9))),
        (3, lambda: machine.carry(pick(), pick(), name(), link=flip(), removed=flip())),
        (3, lambda: machine.rename(what=pick(), where=pick(), name=name(), link=False)),
        (1, lambda: machine.create(pick(), name(), rng.choice("fd"), 100)),
        (1, lambda: machine.hold(what=pick(), away=True)),
        (2, lambda: machine.thin_all()),
        (1, lambda: machine.thin(which=some(), most=rng.choice((1, 2, 100)), crash=flip())),
        (1, lambda: machine.restore(which=pick(), thinned=flip())),
        (1, lambda: machine.restore_paths(which=pick(), what=some())),
        (1, lambda: len(machine.shown) > 1 and machine.forget(which=some()[:1])),
    ]
    weights = [weight for weight, _ in steps]
    try:
        machine.list_all()
        for _ in range(40):
            rng.choices(steps, weights)[0][1]()
        assert machine.given_up or EXAMPLES
    finally:
        machine.teardown()
