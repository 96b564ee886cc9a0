"""Random conversations, checkpoints, removals and collections: what a kept checkpoint has of its
conversation never changes, and what nothing needs goes.

Deterministic by default; `scripts/fuzz --kind sessions` looks at more, and other, examples.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from cowfs.format.sessions import ENDED, LINES, WHOLE
from cowfs.service.sessions import reading
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.retention import drop_unneeded
from cowfs.service.sessions.transcripts import Captured
from cowfs.store.snapshot import Reader
from tests.collecting.looking import check_verified, forget
from tests.sessions.talking import Talk, pieces, sessions, transcripts
from tests.support.searching import WITHOUT_LIMIT, search
from tests.support.volumes import Rig

pytestmark = WITHOUT_LIMIT
NAMES = ("s1", "s2", "s2-b")
FILES = {"main": LINES, "subagents/a.jsonl": LINES, "whole.json": WHOLE}

who = st.sampled_from(NAMES)
files = st.sampled_from(list(FILES))
lines = st.sampled_from([b"a\n", b"bc\n", b"bc\nd", b"\n", b"no end", b"longer " * 50 + b"\n"])


class Machine(RuleBasedStateMachine):
    """model: by checkpoint what its conversation was. current: by session and file what is on
    disk; stored: as the last look found it."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        top = Path(tempfile.mkdtemp(dir=place))
        self.rig = Rig(top / "store", None)
        self.talks = {name: Talk(self.rig, top / name, name) for name in NAMES}
        self.disk: dict[tuple[str, str], bytes] = {}
        self.stored: dict[tuple[str, str], bytes] = {}
        self.model: dict[str, tuple[str, dict[str, bytes]]] = {}
        self.held: list[tuple[str, Captured, dict[str, bytes]]] = []
        for talk in self.talks.values():
            for name, kind in FILES.items():
                talk.add(name, name.replace("/", "-"), kind)
        self._another_life()

    def _another_life(self) -> None:
        registry = Registry(self.rig.engine)
        for talk in self.talks.values():
            talk.registry = registry

    # -- what an agent does ---------------------------------------------------------------------

    @rule(name=who, file=files, data=lines)
    def grow(self, name: str, file: str, data: bytes) -> None:
        self.talks[name].says(data, file)
        self.disk[name, file] = self.disk.get((name, file), b"") + data

    @rule(name=who, file=files, data=st.lists(lines, max_size=3).map(b"".join))
    def rewrite(self, name: str, file: str, data: bytes) -> None:
        self.talks[name].path(file).write_bytes(data)
        self.disk[name, file] = data

    @rule(name=who, file=files)
    def swap_case_in_the_middle(self, name: str, file: str) -> None:
        if data := self.disk.get((name, file)):
            half = len(data) // 2
            data = data[:half] + data[half : half + 1].swapcase() + data[half + 1 :]
            with open(self.talks[name].path(file), "r+b") as stream:
                stream.write(data)
            self.disk[name, file] = data

    @rule(name=who, file=files)
    def vanish(self, name: str, file: str) -> None:
        self.talks[name].path(file).unlink(missing_ok=True)
        self.disk.pop((name, file), None)

    # -- what is kept ---------------------------------------------------------------------------

    def look(self, name: str) -> tuple[Captured, dict[str, bytes]]:
        captured = self.talks[name].keep()
        assert captured.complete
        for file, kind in FILES.items():
            data = self.disk.get((name, file))
            if data is not None:
                whole = data[: data.rfind(b"\n") + 1] if kind == LINES else data
                self.stored[name, file] = whole
        shown = {file: self.stored.get((name, file), b"") for file in FILES}
        return captured, {file: data for file, data in shown.items() if data}

    @rule(name=who)
    def keep(self, name: str) -> None:
        self.look(name)

    @rule(name=who)
    def hold(self, name: str) -> None:
        """A look whose checkpoint is made later."""
        if len(self.held) < 3:
            self.held.append((name, *self.look(name)))

    @precondition(lambda self: self.held)
    @rule()
    def checkpoint_of_before(self) -> None:
        name, captured, shown = self.held.pop(0)
        self.model[self.talks[name].checkpoint(captured).id] = name, shown

    @rule(name=who)
    def checkpoint(self, name: str) -> None:
        captured, shown = self.look(name)
        self.model[self.talks[name].checkpoint(captured).id] = name, shown

    @rule()
    def checkpoint_of_nobody(self) -> None:
        self.rig.checkpoint()

    @rule(name=who)
    def end(self, name: str) -> None:
        registry = self.talks[name].registry
        registry.change(name, lambda r: msgspec.structs.replace(r, state=ENDED, ended=1))

    @rule(crash=st.booleans())
    def another_life(self, crash: bool) -> None:
        self.held.clear()
        if crash:
            self.rig.volume.sync()  # of what was lost the model would know nothing
            self.rig.crash()
            self.rig.start()
        else:
            self.rig.reopen()
        self._another_life()

    # -- what goes ------------------------------------------------------------------------------

    @precondition(lambda self: self.model)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=5))
    def forget(self, which: list[int]) -> None:
        ids = list(self.model)
        gone = {ids[pick % len(ids)] for pick in which}
        forget(self.rig, gone)
        for name in gone:
            del self.model[name]

    @rule(steps=st.sampled_from([0, 1, 2, 3, 100, 100]), old=st.booleans())
    def collect(self, steps: int, old: bool) -> None:
        left = iter([True] * steps)
        registry = self.talks[NAMES[0]].registry
        old = old and not self.held  # who is about to make a checkpoint was just heard of
        drop_unneeded(self.rig.engine, registry, lambda: next(left, False), old=old)
        for name in NAMES:
            if name not in sessions(self.rig):
                for file in FILES:
                    self.stored.pop((name, file), None)
        if steps == 100:
            self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        wanted = {n for record in sessions(self.rig).values() for n in record.files}
        wanted |= {mark.transcript for _, captured, _ in self.held for mark in captured.marks}
        kept = set(transcripts(self.rig))
        marked = set()
        for checkpoint in self.model:
            marked |= self._marks(checkpoint)
        assert kept == wanted | marked
        assert {number for number, _ in pieces(self.rig)} == kept

    def _marks(self, checkpoint: str) -> set[int]:
        with Reader(self.rig.volume.store) as reader:
            context = reading.context(reader, checkpoint)
            assert context is not None
            return {mark.transcript for mark in context.marks}

    @invariant()
    def what_is_kept_is_what_it_was(self) -> None:
        self.rig.volume.sync()
        for checkpoint, (name, shown) in self.model.items():
            assert self.talks[name].conversation(checkpoint) == shown, checkpoint

    def teardown(self) -> None:
        self.held.clear()
        check_verified(self.rig)
        self.rig.finish(check=False)


def test_what_is_kept_never_changes(fast_path: Path) -> None:
    search(Machine, fast_path, examples=50, steps=40)
