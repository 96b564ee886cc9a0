"""A collection that is killed at each of its steps: what is kept shows what it did, and the next
one goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cowfs
from cowfs.format import keys, records
from cowfs.store import steps
from tests.collecting.looking import (
    State,
    check_differences,
    check_nothing_left,
    check_verified,
    collect_garbage,
    forget,
    look,
)
from tests.support.volumes import Rig

STEPS = [step for step in steps.STEPS if step.startswith("collect.")]
_ROOT = Path(cowfs.__file__).resolve().parent.parent
_KILLED = """
import sys
from pathlib import Path
from cowfs.store import steps
from tests.collecting.looking import collect_garbage
from tests.support.volumes import Rig
rig = Rig(Path(sys.argv[1]), Path(sys.argv[2]))
steps.arm(sys.argv[3], int(sys.argv[4]))
collect_garbage(rig)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, State]]:
    """A directory with `store` and `base`, in which every other checkpoint was removed, and what
    the others show."""
    top = tmp_path_factory.mktemp("killed")
    (top / "base").mkdir()
    (top / "base" / "old").write_bytes(b"old")
    rig, rng = Rig(top / "store", top / "base"), random.Random(7)
    rig.paths()
    gone, kept = [], {}
    for number in range(12):
        rig.save(b"file", rng.randbytes(70_000))
        rig.create(b"n%d" % number, rng.randbytes(5000))
        if rig.exists(b"n%d" % (number // 2)):
            rig.write(b"n%d" % (number // 2), b"changed", number)
        rig.setxattr(b"file", b"user.a", b"%d" % number)
        if number % 3 == 2 and rig.exists(b"n%d" % (number - 1)):
            rig.unlink(b"n%d" % (number - 1))
        record = rig.checkpoint()
        if number % 2:
            kept[record.epoch] = look(rig, record.epoch)
        else:
            gone.append(record.id)
        if number == 7:
            rig.restore(gone[0])
    forget(rig, gone)
    rig.finish(check=False)
    return top, kept


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [1, 2])
def test_killed(
    made: tuple[Path, dict[int, State]], fast_path: Path, step: str, passes: int
) -> None:
    top, kept = made
    store = fast_path / "store"
    shutil.copytree(top / "store", store, ignore=shutil.ignore_patterns("lock.mdb"))
    command = [sys.executable, "-c", _KILLED, str(store), str(top / "base"), step, str(passes)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True, timeout=60
    )
    if passes == 1:
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    rig = Rig(store, top / "base")
    rig.check = False
    try:
        _check(rig, kept)
        assert collect_garbage(rig).complete
        _check(rig, kept)
        with rig.volume.store.reading() as txn:
            assert txn.get(b"unswept", db=rig.volume.store.tables["meta"]) is None
        epochs = [epoch for epoch, record in _epochs(rig).items() if record]
        check_nothing_left(rig, epochs)
    finally:
        rig.finish(check=False)


def _epochs(rig: Rig) -> dict[int, str]:
    rig.volume.look_again()
    scan = rig.volume.reader.scan("epoch")
    return {
        keys.unpack_id(key): records.decode(value, records.EpochRecord).checkpoint
        for key, value in scan
    }


def _check(rig: Rig, kept: dict[int, State]) -> None:
    check_verified(rig)
    for epoch, state in kept.items():
        assert look(rig, epoch) == state
    check_differences(rig, kept)
