"""A mounted volume as the use cases see it.

Threading: see service/engine.py; the volume's owner is the FUSE thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cowfs.mount.kernel import Kernel
from cowfs.mount.loop import Loop
from cowfs.store.lineage import Lineage
from cowfs.volume.history import Audience, Swapped
from cowfs.volume.volume import Volume

T = TypeVar("T")


class MountEngine:
    """The `Engine` of a live mount."""

    def __init__(self, volume: Volume, loop: Loop, kernel: Kernel) -> None:
        self.volume = volume
        self._loop = loop
        self._kernel = kernel

    def mountpoint(self) -> str:
        try:
            return self._kernel.mountpoint()
        except OSError:
            return ""

    def handles(self) -> int:
        return self._loop.operations.handles()

    def call(self, fn: Callable[[], T]) -> T:
        return self._loop.call(fn)

    def flush(self) -> None:
        self._kernel.flush()

    def at_one_moment(self, fn: Callable[[], T]) -> T:
        return self._kernel.at_one_moment(fn)

    def switch(
        self, change: Callable[[Audience], Swapped], among: set[int], after: Lineage
    ) -> Swapped:
        return self._kernel.switch(change, among, after)
