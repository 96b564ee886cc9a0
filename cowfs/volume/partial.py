"""Restoring some paths only: the head's tree is edited to match a checkpoint there.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

from cowfs.format import records
from cowfs.volume.history import Author, Swapped
from cowfs.volume.volume import Volume


def restore_paths(
    volume: Volume,
    author: Author,
    target: records.CheckpointRecord,
    branch: records.BranchRecord,
    paths: list[bytes],
    exclude: list[bytes],
) -> Swapped:
    """To be written next."""
    raise NotImplementedError
