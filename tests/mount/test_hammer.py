"""No stale name, attribute or page after a restore, however hard processes look (contract 3)."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount import hammer
from tests.mount.calls import Inotify
from tests.mount.hammer import Board, Worker
from tests.mount.states import State, assert_same, state_of
from tests.support.mounting import Mounted

RESTORES = 100
_SECONDS = 60


class Stage:
    """A tree with three checkpointed states, and what each look at it gives in them."""

    def __init__(self, mounted: Mounted) -> None:
        self.mounted = mounted
        self.top = mounted.mountpoint
        self.board = Board()
        self.groups = hammer.subjects(self.top)
        self.expected: hammer.Expected = []
        self.held: list[list[tuple[int, int, int, int, bytes]]] = []
        self.states: list[State] = []
        self.checkpoints: list[str] = []
        for state in (0, 1, 2):
            hammer.build(self.top, state)
            self.expected.append(hammer.expectation(self.groups))
            self.held.append(hammer.held_state(self.top))
            self.states.append(state_of(self.top))
            self.checkpoints.append(mounted.checkpoint())
        self.now = 2

    @contextlib.contextmanager
    def workers(self, *, held: bool) -> Iterator[list[Worker]]:
        """Processes that look; ended with the block, their reports checked."""
        workers: list[Worker] = []
        self.board.announce(self.now)
        try:
            for seed, (name, group) in enumerate(self.groups.items()):
                body = hammer.hammering(self.board, group, self.expected, seed)
                workers.append(Worker(name, self.board, body))
            if held:
                body = hammer.holding(self.board, hammer.held_paths(self.top), self.held)
                workers.append(Worker("held", self.board, body))
            yield workers
            self.board.stop()
            for worker in workers:
                worker.join()
        finally:
            for worker in workers:
                worker.kill()
        wrong = [line for worker in workers for line in worker.wrong]
        assert not wrong, "\n".join(wrong)

    def go(self, state: int) -> int:
        """Restore; returns the generation under which the state is announced."""
        self.board.moving()
        self.mounted.restore(self.checkpoints[state])
        self.board.announce(state)
        self.now = state
        return self.board.read() >> 8


@pytest.fixture
def stage(mount: Callable[..., Mounted], base: Path) -> Stage:
    return Stage(mount(base))


@contextlib.contextmanager
def watching(top: Path) -> Iterator[Inotify]:
    """An inotify watch on every directory."""
    watcher = Inotify()
    try:
        for directory, _, _ in os.walk(top):
            watcher.watch(directory)
        yield watcher
    finally:
        watcher.close()


@pytest.mark.parametrize("how", ["nobody else", "handles", "watchers"])
def test_no_stale_answer(stage: Stage, how: str) -> None:
    """handles: files and mappings are held all the time. watchers: each restore tells inotify."""
    rng = random.Random(how)
    held = how == "handles"
    with contextlib.ExitStack() as stack:
        if how == "watchers":
            stack.enter_context(watching(stage.top))
        workers = stack.enter_context(stage.workers(held=held))
        for number in range(RESTORES):
            generation = stage.go(rng.choice([s for s in range(3) if s != stage.now]))
            if number % 4 == 0:
                for worker in workers:
                    worker.wait_for_pass(generation, _SECONDS)
            for worker in workers:
                worker.poll()
            if any(worker.wrong for worker in workers):
                break
        else:
            assert all(worker.passes >= RESTORES // 4 for worker in workers)
    names = (
        tuple(stage.states[0].entries)
        if held
        else tuple(
            path for state in stage.states for path in state.entries if path.startswith("opened")
        )
    )
    counts = stage.mounted.call("status", flush=True)["changes"]
    assert counts == {"created": 0, "modified": 0, "deleted": 0}
    assert_same(state_of(stage.top), stage.states[stage.now], but_ctime_of=names)
    assert " WARNING " not in stage.mounted.log(), stage.mounted.log()
