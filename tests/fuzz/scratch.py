"""A place for what a run needs."""

from __future__ import annotations

import contextlib
import os
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
        for directory, names, _ in os.walk(place):  # a run may close them to their owner
            for name in names:
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(place)
