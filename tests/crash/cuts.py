"""Power cuts under a running workspace: store and base on an ext4 that is shut down under them."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.crash import kills, mounts
from tests.crash.disks import Disk, disk
from tests.crash.forks import Child
from tests.crash.kills import Kill, at_random
from tests.crash.knowledge import CrashError

_LIVES = 8


@dataclass
class Tally:
    """cuts: how many; lives: how many ended in order before theirs came."""

    cuts: int = 0
    lives: int = 0


class _Cut:
    """Ends a life by a power cut. done: whether it did."""

    def __init__(self, on: Disk) -> None:
        self._disk = on
        self.done = False

    def __call__(self, child: Child) -> None:
        self._disk.cut()
        self.done = True
        child.kill()


def run(
    cuts: int,
    seed: int,
    parent: Path,
    say: Callable[[str], None] = lambda text: None,
    sabotage: Callable[[], None] = lambda: None,
) -> Tally:
    """So many power cuts at random moments. Raises CrashError."""
    rng, tally = random.Random(seed), Tally()
    chain: kills.Chain | None = None
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix="crash-")))
        on = stack.enter_context(disk(place))
        for number in range(10 * cuts + 100):
            if tally.cuts >= cuts:
                return tally
            if chain is None or chain.lives >= _LIVES:
                chain = kills.Chain(Path(tempfile.mkdtemp(dir=on.at)), sabotage)
                on.unmount()  # the base was there before
                on.mount()
            kill = at_random(rng, 0.003)
            say(f"life {number}: {kill}")
            cut = _Cut(on)
            try:
                chain.live(rng.randrange(1 << 32), kill, cut)
                if cut.done:
                    on.boot()
            except CrashError as error:
                raise CrashError(f"seed {seed}, life {number}, {kill}: {error}") from None
            tally.lives += not cut.done
            tally.cuts += cut.done
    raise CrashError(f"seed {seed}: only {tally.cuts} power cuts in {tally.lives} lives")


def run_mounted(cuts: int, seed: int, parent: Path) -> Tally:
    """The same under a daemon and a mount: calls, then the cut, and the daemon is killed."""
    rng, tally = random.Random(seed), Tally()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix="crash-")))
        on = stack.enter_context(disk(place))
        chain = mounts.Chain(Path(tempfile.mkdtemp(dir=on.at)), in_place=True)
        on.unmount()
        on.mount()
        for number in range(10 * cuts + 20):
            if tally.cuts >= cuts:
                return tally
            kill = Kill(fact=rng.randrange(8), delay=rng.choice((0.0, 0.001, 0.005)))
            try:
                killed = chain.live(rng.randrange(1 << 32), kill, on.cut)
                if killed:
                    on.boot()
            except CrashError as error:
                raise CrashError(f"seed {seed}, life {number}, {kill}: {error}") from None
            tally.lives += not killed
            tally.cuts += killed
    raise CrashError(f"seed {seed}: only {tally.cuts} power cuts in {tally.lives} lives")
