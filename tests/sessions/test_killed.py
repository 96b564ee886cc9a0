"""A process that stores conversations is killed: every checkpoint that is there has its own, and
the next life goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cowfs
from cowfs.format.sessions import WHOLE
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions.retention import drop_unneeded
from cowfs.store import steps
from cowfs.store.snapshot import Reader
from tests.collecting.looking import check_verified, forget
from tests.sessions.talking import LINE, Talk, pieces, sessions, transcripts
from tests.support.volumes import Rig

_ROOT = Path(cowfs.__file__).resolve().parent.parent
STEPS = ["group.frozen", "commit.before-sync", "commit.after-sync", "checkpoint.sealed"]
ROUNDS = 6


def live(store: Path, files: Path, first: int) -> Talk:
    """One file grows and another is replaced, with a checkpoint each time, of which the one before
    the last is removed; what nothing needs is dropped."""
    talk = Talk(Rig(store, None), files)
    talk.add("state.json", "state.json", WHOLE)
    for number in range(first, first + ROUNDS):
        talk.path().write_bytes(LINE * number + b"cut")
        talk.path("state.json").write_bytes(b"%d" % number)
        made = talk.checkpoint()
        with Reader(talk.rig.volume.store) as reader:
            older = [record.id for record in all_checkpoints(reader) if record.epoch]
        forget(talk.rig, [name for name in older[:-2] if name != made.id])
        drop_unneeded(talk.rig.engine, talk.registry, lambda: True)
    return talk


def look(talk: Talk) -> list[int]:
    """The rounds of which checkpoints are left, each with the conversation of then."""
    found = []
    with Reader(talk.rig.volume.store) as reader:
        made = [record.id for record in all_checkpoints(reader) if record.session]
    for name in made:
        files = talk.conversation(name)
        number = int(files["state.json"])
        assert files == {"main": LINE * number, "state.json": b"%d" % number}
        found.append(number)
    return found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [2, 7])
def test_killed(fast_path: Path, step: str, passes: int) -> None:
    store, files = fast_path / "store", fast_path / "files"
    Rig(store, None).finish()
    command = [sys.executable, "-m", __name__, str(store), str(files), step, str(passes)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, capture_output=True, timeout=60
    )
    if passes == 2:
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    talk = Talk(Rig(store, None), files)
    check_verified(talk.rig)
    before = look(talk)
    assert before == sorted(before)
    talk.rig.finish()
    talk = live(store, files, 20)
    assert look(talk) == [24, 25]
    check_verified(talk.rig)
    assert len(transcripts(talk.rig)) == 3  # the file that grows, and two versions of the other
    assert {number for number, _ in pieces(talk.rig)} == set(transcripts(talk.rig))
    assert set(sessions(talk.rig)) == {"s1"}
    talk.rig.finish()


if __name__ == "__main__":
    steps.arm(sys.argv[3], int(sys.argv[4]))
    live(Path(sys.argv[1]), Path(sys.argv[2]), 1).rig.finish()
