"""Cuts of a whole machine's power, under a mounted workspace that reports what it has done.

A life in the machine: its disk is mounted, so that ext4 replays its journal; the workspace is
mounted, and what it shows must be what it reported; then it works, and QEMU is killed at a random
moment. The next life goes on with the disk that is left, from the same saved state of the machine.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.crash.kills import Kill
from tests.crash.knowledge import CrashError, Progress
from tests.vm.machine import Machine
from tests.vm.story import Life, base_as_made, progress_of, to_json, told
from tests.vm.trouble import VmError

DATA_BYTES = 256 << 20
_LIVES = 6
"""Lives of one disk; then the history is long enough to make the checks slow."""
_SILENCE = 240
_CHECK_SECONDS = 240


@dataclass
class Tally:
    """cuts: how many; lives: how many ended in order before theirs came. facts: that were reported
    as durable, calls: that were begun, in all lives. seconds: of all, without the boot."""

    cuts: int = 0
    lives: int = 0
    facts: int = 0
    calls: int = 0
    seconds: float = 0.0


def run(
    cuts: int,
    seed: int,
    machine: Machine,
    say: Callable[[str], None],
    tally: Tally,
    *,
    syncs: bool = True,
) -> None:
    """So many cuts with a machine that was saved, counted in `tally`. Without `syncs` the store is
    broken, to see that this is noticed. Raises CrashError, VmError."""
    rng, started = random.Random(seed), time.monotonic()
    lives: list[Life] = []
    for number in range(10 * cuts + 20):
        if len(lives) == _LIVES or tally.cuts == cuts:
            with _named(seed, number):
                check(machine, lives)
            lives = []
        if tally.cuts == cuts:
            break
        if not lives:
            machine.make_data()
        chain = _Chain(machine, lives, _moment(rng), syncs)
        lives.append(Life(rng.randrange(1 << 32)))
        with _named(seed, number):
            chain.live()
        tally.facts += chain.facts
        tally.calls += chain.calls
        tally.lives += not chain.cut
        tally.cuts += chain.cut
        tally.seconds = time.monotonic() - started
        say(f"life {number}: {chain}")
    if tally.cuts < cuts:
        raise CrashError(f"seed {seed}: only {tally.cuts} cuts in {tally.lives} lives")


@contextlib.contextmanager
def _named(seed: int, life: int) -> Iterator[None]:
    try:
        yield
    except CrashError as error:
        raise CrashError(f"seed {seed}, life {life}: {error}") from None


def _moment(rng: random.Random) -> Kill:
    """Up to a tenth of a second after a call was begun or a fact was reported; some while the
    machine looks at what the last cut left."""
    chance = rng.random()
    if chance < 0.45:
        return Kill(call=rng.randrange(80), delay=rng.uniform(0, 0.1))
    if chance < 0.9:
        return Kill(fact=rng.randrange(25), delay=rng.choice((0.0, rng.uniform(0, 0.1))))
    return Kill(delay=rng.uniform(0, 5))


class _Chain:
    """The last one of some lives, as it happens."""

    def __init__(self, machine: Machine, lives: list[Life], kill: Kill, syncs: bool) -> None:
        self._machine, self._lives, self._kill = machine, lives, kill
        self._syncs = syncs
        self._progress: Progress | None = None
        self.cut = False
        self.seconds = 0.0

    @property
    def facts(self) -> int:
        return self._progress.facts if self._progress else 0

    @property
    def calls(self) -> int:
        return self._progress.begun if self._progress else 0

    def __str__(self) -> str:
        how = "cut" if self.cut else "ended in order"
        return f"{how} after {self.facts} facts and {self.calls} calls, {self.seconds:.1f} s"

    def live(self) -> None:
        """Raises CrashError, VmError."""
        started = time.monotonic()
        *before, now = self._lives
        self._machine.resume()
        ways = {"options": "", "marks": False, "syncs": self._syncs}
        self._machine.ask("live", seed=now.seed, lives=to_json(before), **ways)
        asked = time.monotonic()
        while True:
            wait = asked + self._kill.delay - time.monotonic() if self._at_start else _SILENCE
            report = self._machine.read(wait)
            if report is None:
                if self.cut:
                    break
                if not self._at_start:
                    raise VmError(f"the machine said nothing for {_SILENCE} s")
                self._end()
            elif report[0] == "failed":
                raise CrashError(report[1])
            elif report[0] == "end":
                break
            else:
                now.reports.append(report)
                self._note(report, before, now)
        self._machine.cut()
        self.seconds = time.monotonic() - started

    @property
    def _at_start(self) -> bool:
        return not self.cut and self._kill.call < 0 and self._kill.fact < 0

    def _note(self, report: list[object], before: list[Life], now: Life) -> None:
        if report[0] == "start":
            known = told(base_as_made(), before)
            self._progress = progress_of(known.states[int(str(report[1]))], now.seed, known.ids)
        elif self._progress is not None:
            self._progress.note(report)
            if not self.cut and self._kill.due(self._progress):
                time.sleep(self._kill.delay)
                self._end()

    def _end(self) -> None:
        """The power goes; what was reported before can still be read."""
        self._machine.cut()
        self.cut = True


def check(machine: Machine, lives: list[Life]) -> None:
    """What is on the disk is what some lives reported. Raises CrashError, VmError."""
    machine.resume()
    machine.ask("check", lives=to_json(lives), options="")
    for _ in machine.reports(_CHECK_SECONDS):
        pass
    machine.cut()
