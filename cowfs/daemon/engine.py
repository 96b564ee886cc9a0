"""A mounted volume as the use cases see it.

Threading: see service/engine.py; the volume's owner is the FUSE thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from cowfs.mount.kernel import Kernel
from cowfs.mount.loop import Loop
from cowfs.volume.history import Audience, Invalidation
from cowfs.volume.volume import Volume

T = TypeVar("T")


class MountEngine:
    """The `Engine` of a live mount."""

    def __init__(self, volume: Volume, loop: Loop, kernel: Kernel) -> None:
        self.volume = volume
        self._loop = loop
        self._kernel = kernel

    def call(self, fn: Callable[[], T]) -> T:
        return self._loop.call(fn)

    def flush(self) -> None:
        self._kernel.flush()

    def audience(self) -> Audience:
        return self._kernel.audience()

    def holding(self, among: set[int] | None = None) -> AbstractContextManager[set[int]]:
        return self._kernel.holding(among)

    def stranding(self) -> AbstractContextManager[None]:
        return self._kernel.stranding()

    def invalidate(self, invalidation: Invalidation) -> None:
        self._kernel.invalidate(invalidation)
