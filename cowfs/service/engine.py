"""What a use case needs of its surroundings, so that it works with and without a mount.

Threading: an `Engine` may be used from any thread but the volume's owner; `LocalEngine` only from
the thread that owns its volume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from cowfs.store.lineage import Lineage
from cowfs.volume.git_state import git_state
from cowfs.volume.history import NOBODY, Audience, Swapped
from cowfs.volume.volume import Volume

T = TypeVar("T")


class Engine(Protocol):
    """A volume open for writing, and the kernel's view of it.

    mountpoint: where the mount is now, "" without one. handles: how many files and directories of
    it are open. call: run a function in the thread that owns the volume. flush: bring what the
    kernel holds back into the volume. at_one_moment: flush, and run a function in the owning thread
    so that what other processes write is either before it, and there, or after it (contract 2).
    switch: run a restore in the owning thread and make the kernel show its outcome (contract 3);
    `among`: the inodes that may change, `after`: to what.
    """

    volume: Volume

    def mountpoint(self) -> str: ...
    def handles(self) -> int: ...
    def call(self, fn: Callable[[], T]) -> T: ...
    def flush(self) -> None: ...
    def at_one_moment(self, fn: Callable[[], T]) -> T: ...
    def switch(
        self, change: Callable[[Audience], Swapped], among: set[int], after: Lineage
    ) -> Swapped: ...


class LocalEngine:
    """A volume without a mount, in the calling thread."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume

    def mountpoint(self) -> str:
        return ""

    def handles(self) -> int:
        return 0

    def call(self, fn: Callable[[], T]) -> T:
        return fn()

    def flush(self) -> None:
        return

    def at_one_moment(self, fn: Callable[[], T]) -> T:
        return fn()

    def switch(
        self, change: Callable[[Audience], Swapped], among: set[int], after: Lineage
    ) -> Swapped:
        return change(NOBODY)


def commit(engine: Engine) -> None:
    """What the volume holds now is on stable storage. What comes meanwhile is not waited for: on a
    busy mount that has no end. Raises StoreFullError."""
    group = engine.call(engine.volume.quiesce)
    if group is not None:
        engine.volume.writer.wait(group)
        engine.call(engine.volume.reap)


def look_at_git(engine: Engine) -> None:
    """Before a checkpoint: where the repository is outside of the workspace, see its state."""
    elsewhere = engine.volume.git_elsewhere
    if not elsewhere.known:
        engine.call(lambda: git_state(engine.volume))
    elsewhere.look()
