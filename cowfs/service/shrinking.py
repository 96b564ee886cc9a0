"""Giving the room of free pages back to the disk while the workspace is in use (store/holes.py).

Threading: one run at a time, in a thread that may wait for the writer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cowfs.errors import CompactFailedError
from cowfs.service.collecting import Pace, Progress
from cowfs.service.engine import Engine
from cowfs.store import holes
from cowfs.store.env import Transaction
from cowfs.store.freelist import FreeListError
from cowfs.store.room import Room
from cowfs.store.steps import reached

_STEP_SECONDS = 0.01
"""A commit waits for one step at most."""
_MIB = 1 << 20
_SPARED = (16 * _MIB, 256 * _MIB)
"""What a background run leaves: an eighth of what is in use, within these bounds."""
_WORTH = 32 * _MIB


@dataclass(slots=True)
class Shrunk:
    """Bytes of disk. before, after: that the store's file took and takes. held: of free pages that
    cannot be given back yet: a command that reads the store may see them, or the last commit made
    them free. complete: all that can be was looked at."""

    before: int = 0
    after: int = 0
    held: int = 0
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def shrink(engine: Engine, pace: Pace, progress: Progress, *, spared: int = 0) -> Shrunk:
    """Make holes of the free pages, but for some bytes of them. progress: called with phase, done,
    total. Raises CompactHolesError, CompactFailedError (the list of free pages is damaged, or
    the file cannot be read), StoreFullError, StoreUnwritableError, WriterEndedError."""
    store = engine.volume.store
    store.forget_dead_readers()
    done = Shrunk(before=store.bytes_used())
    try:
        found = holes.survey(store, spared)
        reached("holes.begin")
        done.held = found.held
        for number, window in enumerate(found.windows):
            if not _empty(engine, pace, *window):
                break
            progress(phase="windows", done=number + 1, total=len(found.windows))
        else:
            done.complete = True
    except (FreeListError, OSError) as error:
        raise CompactFailedError(path=str(store.path), detail=str(error)) from None
    done.after = store.bytes_used()
    reached("holes.done")
    return done


def _empty(engine: Engine, pace: Pace, low: int, high: int) -> bool:
    """Make holes between two pages; False when the run shall end."""
    left = high

    def step(txn: Transaction) -> None:
        nonlocal left
        left = holes.punch(engine.volume.store, txn, low, left, _STEP_SECONDS)

    while left > low:
        if not pace.go_on():
            return False
        engine.volume.writer.run(step)
    return True


def spared(room: Room) -> int:
    """What a run that nobody asked for leaves: a store that is at work needs it again."""
    least, most = _SPARED
    return min(max(room.used // 8, least), most)


def is_worth_it(room: Room) -> bool:
    """Whether such a run would free much."""
    return room.inside - spared(room) >= _WORTH
