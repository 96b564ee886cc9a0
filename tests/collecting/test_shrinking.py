"""Random histories whose store gives free pages back between any two steps: what is kept shows what
it did."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import rule

from cowfs.service.collecting import Pace
from cowfs.service.shrinking import shrink
from tests.collecting.test_machine import Machine
from tests.support.searching import WITHOUT_LIMIT, search
from tests.volume.test_machine import make_base

pytestmark = WITHOUT_LIMIT


class Shrinking(Machine):
    @rule(spared=st.sampled_from([0, 0, 100_000]), crash=st.booleans())
    def shrink(self, spared: int, crash: bool) -> None:
        self.rig.volume.sync()
        now = self.rig.tree()
        held = [handle.read() for handle, _ in self.held]
        assert shrink(self.rig.engine, Pace(), lambda **_: None, spared=spared).complete
        assert self.rig.tree() == now
        assert [handle.read() for handle, _ in self.held] == held
        if crash:
            self.held.clear()
            self.rig.crash()
            self.rig.start()
        self._check()


def test_what_is_kept_never_changes(base: Path, fast_path: Path) -> None:
    make_base(base)
    search(Shrinking, base, fast_path, examples=15, steps=40)
