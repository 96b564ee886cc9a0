"""What a killed process leaves: the state at some one moment, and everything that was synced."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cowfs
from cowfs.store.group import TransactionGroup
from tests.support.steps import Worker
from tests.support.volumes import Facts, Rig
from tests.volume.test_history import fill_base

Tree = dict[bytes, Facts]
_ROOT = Path(cowfs.__file__).resolve().parent.parent


def timeless(tree: Tree) -> Tree:
    """A tree without times, to compare two runs of the same work."""
    return {path: facts._replace(atime=0, mtime=0, ctime=0) for path, facts in tree.items()}


def test_what_was_not_synced_may_go_but_only_from_the_end(volume: Rig) -> None:
    volume.create(b"a", b"one")
    volume.volume.sync()
    kept = volume.tree()
    volume.create(b"b", b"two")
    volume.unlink(b"a")
    volume.crash()
    volume.start()
    assert volume.tree() == kept


def test_a_synced_state_survives(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"d/f", b"x" * 100_000)
    volume.volume.sync()
    tree = volume.tree()
    volume.crash()
    volume.start()
    assert volume.tree() == tree


def test_a_checkpoint_and_a_restore_survive(volume: Rig) -> None:
    volume.create(b"f", b"one")
    one = volume.checkpoint()
    volume.save(b"f", b"two")
    volume.crash()
    volume.start()
    assert volume.read(b"f") == b"one"
    volume.save(b"f", b"three")
    volume.restore(one)
    volume.crash()
    volume.start()
    assert volume.read(b"f") == b"one"
    volume.undo()
    assert volume.read(b"f") == b"three"


@pytest.mark.parametrize("seed", range(3))
def test_every_commit_is_the_state_of_one_moment(
    open_rig: Callable[[], Rig], base: Path, fast_path: Path, seed: int
) -> None:
    """The store is copied at every commit; each copy shows what the volume showed then."""
    fill_base(base)
    rig = open_rig()
    writer = rig.volume.writer
    submitted: list[list[TransactionGroup]] = [[]]
    copies: list[list[TransactionGroup]] = []
    submit = writer.submit

    def note(group: TransactionGroup) -> None:
        submitted[-1].append(group)
        submit(group)

    def copy() -> None:
        done = [group for groups in submitted for group in groups if group.done]
        directory = fast_path / f"copy{len(copies)}"
        directory.mkdir()
        shutil.copy(rig.store / "data.mdb", directory)
        copies.append(done)

    writer.submit = note  # type: ignore[method-assign]
    writer.set_notify(copy)
    worker, rng = Worker(rig, seed), random.Random(seed)
    states = [rig.tree()]
    rig.volume.quiesce()
    for _ in range(80):
        submitted.append([])
        worker.step()
        rig.volume.quiesce()
        states.append(rig.tree())
        if rng.random() < 0.3:
            rig.volume.sync()
    rig.close()

    steps = {id(group): step for step, groups in enumerate(submitted) for group in groups}
    assert len(copies) > 20
    for number, done in enumerate(copies):
        step = steps[id(done[-1])]
        expected = [states[step]]
        if done[-1] is not submitted[step][-1]:
            expected.append(states[step - 1])  # in the middle of a restore
        copied = Rig(fast_path / f"copy{number}", base)
        assert copied.tree() in expected, number
        copied.finish(check=number % 10 == 0)


@pytest.mark.parametrize(("seed", "steps"), [(11, 3), (12, 40), (13, 90), (14, 150)])
def test_killed_at_any_moment(fast_path: Path, base: Path, seed: int, steps: int) -> None:
    fill_base(base)
    store = fast_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.steps", str(store), str(base), str(seed)],
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        text=True,
    )
    synced = done = -1
    try:
        assert process.stdout is not None
        for line in process.stdout:
            what, number = line.split()
            if what == "synced":
                synced = int(number)
            else:
                done = int(number)
            if done >= steps:
                break
    finally:
        process.kill()
        rest, _ = process.communicate()
    for line in rest.splitlines(keepends=True):
        if line.startswith("synced ") and line.endswith("\n"):
            synced = int(line.split()[1])
    assert done >= steps
    further = rest.count("\n") + 2

    # The same work once more, watched.
    watched = Rig(fast_path / "watched", base)
    worker = Worker(watched, seed)
    states = [timeless(watched.tree())]
    for _ in range(done + further):
        worker.step()
        states.append(timeless(watched.tree()))
    watched.finish(check=False)

    rig = Rig(store, base)
    found = timeless(rig.tree())
    assert found in states[synced + 1 :]
    rig.create(b"the next life", b"works")
    rig.finish()
