"""A place for what a run needs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A directory that goes with the block; in `parent`, or where there is an ordinary disk."""
    place = tempfile.mkdtemp(prefix="cowfs-fuzz-", dir=parent or "/var/tmp")
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place)
