"""A collection that is killed at each of its steps: what is kept shows what it did, or in volatile
paths of old checkpoints that it is thinned, and the next one goes on."""

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
from cowfs.service.collecting import Thinning
from cowfs.store import steps
from tests.collecting.looking import (
    THINNED,
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
from cowfs.service.collecting import Thinning
from cowfs.store import steps
from tests.collecting.looking import collect_garbage
from tests.support.volumes import Rig
rig = Rig(Path(sys.argv[1]), Path(sys.argv[2]))
steps.arm(sys.argv[3], int(sys.argv[4]))
old = frozenset(map(int, sys.argv[5:]))
collect_garbage(rig, thinning=Thinning(old, (b"made",)))
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
    rig.mkdir(b"made")
    gone, kept = [], {}
    for number in range(12):
        for name in (b"made/a", b"made/b"):
            rig.save(name, rng.randbytes(70_000))
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
    old = sorted(kept)[:-2]
    command = [sys.executable, "-c", _KILLED, str(store), str(top / "base"), step, str(passes)]
    command += map(str, old)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True, timeout=60
    )
    if passes == 1:
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    rig = Rig(store, top / "base")
    rig.check = False
    try:
        _check(rig, kept, old)
        assert collect_garbage(rig, thinning=Thinning(frozenset(old), (b"made",))).complete
        _check(rig, kept, old)
        for epoch in old[:-1]:  # what the last one of them shows, a rescue checkpoint has, too
            assert look(rig, epoch)[b"made/a"].content == THINNED
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


def _check(rig: Rig, kept: dict[int, State], old: list[int]) -> None:
    check_verified(rig)
    for epoch, state in kept.items():
        for path, shown in look(rig, epoch).items():
            if shown != state[path]:
                assert epoch in old
                assert path.startswith(b"made/")
                assert shown == state[path]._replace(content=THINNED)
    check_differences(rig, {epoch: look(rig, epoch) for epoch in kept})
