"""Kills without FUSE: a store through many lives, each ended at a step or at a random moment.

A life opens the workspace as a daemon does, compares what it finds with what is known, verifies,
and works until it is killed. Its reports go to the parent by a pipe.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cowfs.store import steps
from tests.crash.forks import Child, Report, spin
from tests.crash.knowledge import (
    CrashError,
    Knowledge,
    Progress,
    check_closed,
    directory_view,
    matching,
)
from tests.crash.local import Life, make_base
from tests.crash.states import Call, Tree, first_state
from tests.crash.workload import plan

STEPS = tuple(
    step
    for step in steps.STEPS
    if not step.startswith(("unmount.", "salvage.", "upgrade.", "compact.", "collect.", "copy."))
)
"""The steps that a life without a mount can reach."""
_LIVES = 12
"""Lives of one store; then the history is long enough to make the checks slow."""
_OPERATIONS = 7


@dataclass(frozen=True)
class Kill:
    """How a life shall end. step: there, reached for the `passes`th time. Else `delay` seconds
    after something: the call with this number was begun, the durable fact with this number was
    reported; or, when both are -1, the process was begun."""

    step: str = ""
    passes: int = 1
    call: int = -1
    fact: int = -1
    delay: float = 0.0

    def due(self, progress: Progress) -> bool:
        """Whether it is time to kill, after a report."""
        if progress.calling:
            return progress.begun - 1 == self.call
        return progress.facts - 1 == self.fact >= 0 and progress.at_fact


@dataclass
class Tally:
    """kills: how many; lives: how many ended in order; by_step: kills at each step."""

    kills: int = 0
    lives: int = 0
    by_step: Counter[str] = field(default_factory=Counter)

    @property
    def random(self) -> int:
        return self.kills - self.by_step.total()


class Chain:
    """One workspace and what is known of it."""

    def __init__(self, place: Path, sabotage: Callable[[], None] = lambda: None) -> None:
        """`sabotage` is run in every life, to see that what it breaks is noticed."""
        self.store, self.base = place / "store", place / "base"
        self._sabotage = sabotage
        make_base(self.base)
        self.known = Knowledge([first_state(base_tree(self.base))])
        self.lives = 0

    def live(self, seed: int, kill: Kill, end: Callable[[Child], None] = Child.kill) -> bool:
        """One more life; whether it was killed. Raises CrashError. `end` ends it at the moment
        that `kill` says."""
        known, progress = self.known, None
        child = Child(lambda report: self._work(seed, kill, report))
        if not kill.step and kill.call < 0 and kill.fact < 0:
            spin(kill.delay)
            end(child)
        for word, *values in child.reports():
            if word == "start":
                state = known.states[values[0]]
                progress = Progress(state, plan(state, seed, _OPERATIONS), known.ids, paged=False)
            elif progress is not None:
                progress.note([word, *values])
                if kill.due(progress):
                    spin(kill.delay)
                    end(child)
        killed = child.wait()
        if progress is not None:
            self.known = progress.knowledge()
        self.lives += 1
        return killed

    def _work(self, seed: int, kill: Kill, report: Report) -> None:
        self._sabotage()
        steps.arm(kill.step, kill.passes)
        life = Life(self.store, self.base)
        state = matching(self.known, life.found())
        life.close()
        assert life.base_fd is not None
        check_closed(self.store, life.base_fd, Knowledge([state], self.known.ids))
        life.start()
        report("start", self.known.states.index(state))
        work(life, plan(state, seed, _OPERATIONS), seed, report)
        life.close()
        report("closed")


def work(life: Life, calls: list[Call], seed: int, report: Report) -> None:
    """The calls of one life, each reported before and after."""
    rng, ids = random.Random(seed), life.found().ids
    for call in calls:
        report("begin")
        old = len(ids)
        life.do(call, ids)
        report("done", {index: ids[index] for index in range(old, len(ids))})
        life.tick(rng)


def base_tree(base: Path) -> Tree:
    """The tree of a directory."""
    view = directory_view(str(base))
    numbers = {first: n for n, first in enumerate(sorted({s.first for s in view.values()}))}
    nodes = {numbers[shown.first]: shown.node for shown in view.values()}
    return Tree({path: numbers[shown.first] for path, shown in view.items()}, nodes)


def run(
    kills: int,
    seed: int,
    parent: Path,
    say: Callable[[str], None] = lambda text: None,
    sabotage: Callable[[], None] = lambda: None,
) -> Tally:
    """So many kills: every other one at a step, each step in turn. Raises CrashError."""
    rng, tally = random.Random(seed), Tally()
    chain: Chain | None = None
    with tempfile.TemporaryDirectory(dir=parent, prefix="crash-") as top:
        for number in range(10 * kills + 100):
            if tally.kills >= kills:
                return tally
            kill = _choose(rng, tally)
            if chain is None or chain.lives >= _LIVES or kill.step.startswith("create."):
                chain = Chain(Path(tempfile.mkdtemp(dir=top)), sabotage)
            calls = rng.randrange(1 << 32)
            say(f"life {number}: {kill}")
            try:
                killed = chain.live(calls, kill)
            except CrashError as error:
                raise CrashError(f"seed {seed}, life {number}, {kill}: {error}") from None
            tally.lives += not killed
            tally.kills += killed
            if killed and kill.step:
                tally.by_step[kill.step] += 1
    raise CrashError(f"seed {seed}: only {tally.kills} kills in {tally.lives} lives")


def _choose(rng: random.Random, tally: Tally) -> Kill:
    if tally.kills % 2 == 0:
        step = STEPS[tally.by_step.total() % len(STEPS)]
        return Kill(step=step, passes=rng.choice((1, 1, 1, 2, 3, 5)))
    return at_random(rng, 0.001)


def at_random(rng: random.Random, delay: float) -> Kill:
    """A kill at a moment: up to `delay` seconds after a call was begun, at once after a fact was
    reported, or while the process starts."""
    chance = rng.random()
    if chance < 0.45:
        return Kill(call=rng.randrange(40), delay=rng.uniform(0, delay))
    if chance < 0.9:
        return Kill(fact=rng.randrange(10), delay=rng.choice((0.0, rng.uniform(0, delay))))
    return Kill(delay=rng.uniform(0, 0.04))
