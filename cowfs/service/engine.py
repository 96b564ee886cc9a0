"""What a use case needs of its surroundings, so that it works with and without a mount.

Threading: an `Engine` may be used from any thread but the volume's owner; `LocalEngine` only from
the thread that owns its volume.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from cowfs.volume.history import NOBODY, Audience, Invalidation
from cowfs.volume.volume import Volume

T = TypeVar("T")


class Engine(Protocol):
    """A volume open for writing, and the kernel's view of it.

    call: run a function in the thread that owns the volume. flush: bring what the kernel holds
    back into the volume. audience: who watches what a restore changes. holding: keep writers off
    files that are open for writing. stranding, invalidate: what a restore tells the kernel.
    """

    volume: Volume

    def call(self, fn: Callable[[], T]) -> T: ...
    def flush(self) -> None: ...
    def audience(self) -> Audience: ...
    def holding(self, among: set[int] | None = None) -> AbstractContextManager[set[int]]: ...
    def stranding(self) -> AbstractContextManager[None]: ...
    def invalidate(self, invalidation: Invalidation) -> None: ...


class LocalEngine:
    """A volume without a mount, in the calling thread."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume

    def call(self, fn: Callable[[], T]) -> T:
        return fn()

    def flush(self) -> None:
        return

    def audience(self) -> Audience:
        return NOBODY

    def holding(self, among: set[int] | None = None) -> AbstractContextManager[set[int]]:
        return contextlib.nullcontext(set())

    def stranding(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def invalidate(self, invalidation: Invalidation) -> None:
        return


def commit(engine: Engine) -> None:
    """Everything that the volume holds is on stable storage. Raises StoreFullError."""
    while True:
        group = engine.call(engine.volume.quiesce)
        if group is None:
            return
        engine.volume.writer.wait(group)
        engine.call(engine.volume.reap)
        if not engine.call(lambda: engine.volume.dirty):
            return
