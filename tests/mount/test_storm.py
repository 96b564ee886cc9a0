"""Checkpoints, restores and undos while processes change everything: nothing breaks."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.client.rpc import RpcError
from cowfs.service.verify import verify
from tests.conftest import MountFunction
from tests.mount.calls import drop_caches, eventually, in_child
from tests.mount.history import looking, stored_ctimes
from tests.mount.mounts import killed_and_mounted_again
from tests.mount.states import assert_same, fill_base, state_of
from tests.mount.storm import Storm
from tests.support.mounting import Mounted

SECONDS = 6.0


class Children:
    """Processes that each return a text, "" when all is well."""

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []

    def start(self, fn: Callable[[], str]) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                text = fn()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode()[:4000])
            os._exit(0)
        os.close(writing)
        self._running.append((pid, reading))

    def results(self) -> list[str]:
        """What those who found something wrong say, when all have ended."""
        out = []
        for pid, reading in self._running:
            with os.fdopen(reading, "rb") as pipe:
                out.append(pipe.read().decode())
            os.waitpid(pid, 0)
        self._running = []
        return [text for text in out if text]


def _go_places(mounted: Mounted, kept: str, seed: int, seconds: float) -> str:
    """Make checkpoints and go to random ones; returns what went wrong."""
    rng = random.Random(seed)
    known = [kept]
    end = time.monotonic() + seconds
    with mounted.client() as client:
        while time.monotonic() < end:
            what = rng.choice(("checkpoint", "restore", "undo", "redo", "status", "flush"))
            params: dict[str, object] = {}
            if what == "restore":
                params = {"checkpoint": rng.choice(known)}
                if rng.random() < 0.3:
                    params["paths"] = [rng.choice(("d0", "d1", "f1", "base2"))]
            elif what == "status":
                params = {"flush": True}
            try:
                answer = client.call(what, params)
            except RpcError as error:
                if error.error["code"] in ("COWFS_NOTHING_TO_UNDO", "COWFS_UNKNOWN_PATH"):
                    continue
                return f"{what}: {error.error}"
            if what == "flush":
                fd = client.take_fd()
                assert fd is not None
                os.close(fd)
            if what == "checkpoint":
                known.append(answer["checkpoint"]["id"])
    return ""


@pytest.fixture
def stormy(mount: MountFunction, base: Path) -> Mounted:
    fill_base(base)
    return mount(base)


def test_storm(stormy: Mounted) -> None:
    top = stormy.mountpoint
    calm, kept = state_of(top), stormy.checkpoint()
    children = Children()
    for seed in range(3):
        children.start(lambda seed=seed: Storm(top, seed).run(SECONDS))  # type: ignore[misc]
    for seed in range(2):
        children.start(lambda seed=seed: _go_places(stormy, kept, seed, SECONDS))  # type: ignore[misc]
    assert children.results() == []
    # A file that was held during a restore shows its ctime a moment after it was closed.
    right = stored_ctimes(stormy)
    eventually(lambda: {path: os.lstat(top / path).st_ctime_ns for path in right} == right)
    # What the kernel shows from its caches, what it shows without, and what is stored, agree.
    shown = state_of(top)
    drop_caches()
    assert_same(state_of(top), shown)
    with looking(stormy) as workspace:
        report = verify(workspace, mountpoint=str(top))
        assert report.problems == []
    stormy.restore(kept)
    assert_same(state_of(top), calm)
    drop_caches()
    assert_same(state_of(top), calm)


def test_killed_in_the_middle_of_restores(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    states, ids = [], []
    for number in range(3):
        Storm(base, number).run(0.3)
        states.append(state_of(base))
        ids.append(mounted.checkpoint())
    for seed in range(3):
        children = Children()
        rng = random.Random(seed)
        current = mounted

        def restores(rng: random.Random = rng, mounted: Mounted = current) -> str:
            while True:
                try:
                    mounted.restore(rng.choice(ids))
                except Exception:
                    return ""  # the daemon is dead

        children.start(restores)
        with mounted.client() as client:
            before = client.call("status")["head_epoch"]
            after = before + 5 + 3 * seed
            eventually(lambda after=after: client.call("status")["head_epoch"] >= after)  # type: ignore[misc]
        mounted = killed_and_mounted_again(mounted, mount)
        assert children.results() == []
        found = state_of(base)
        right = [state for state in states if state == found]
        assert right, "a state that was never there"


def test_storm_of_an_ordinary_end(stormy: Mounted) -> None:
    """Unmounting by force under the storm: what is found is sound."""
    top = stormy.mountpoint
    children = Children()
    for seed in range(3):
        children.start(lambda seed=seed: Storm(top, 10 + seed).run(2.0))  # type: ignore[misc]
    stormy.checkpoint()
    in_child(lambda: stormy.call("unmount", force=True))
    assert stormy.process.wait(30) == 0
    children.results()
