"""Walking over the base: bringing one directory after the other up to date.

The listing of each directory is read in the calling thread; only taking it over happens in the
thread that owns the volume.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import logging
import stat

from cowfs.format import records
from cowfs.service.engine import Engine
from cowfs.volume.base import BaseEntry
from cowfs.volume.posix import PosixError

log = logging.getLogger(__name__)

_DIRECTORY = records.kind_of(stat.S_IFDIR)


def visit(engine: Engine, ino: int) -> tuple[list[int], list[int]]:
    """Bring a directory of the head up to date; returns (sub-directories, all else) in it."""
    volume = engine.volume
    importer, view = volume.importer, volume.main
    path = engine.call(lambda: importer.needs_listing(view, ino))
    listing: list[BaseEntry] | None = None
    if path is not None and volume.base is not None:
        try:
            listing = volume.base.scan(path)
        except OSError as error:
            log.info("cannot list %r: %s", path, error)

    def take() -> tuple[list[int], list[int]]:
        try:
            if listing is not None:
                importer.offer_listing(view, ino, listing)
            packed = (view.directory(ino).entries or {}).values()
        except PosixError:
            return [], []
        directories = [p >> 4 for p in packed if p & 15 == _DIRECTORY]
        others = [p >> 4 for p in packed if p & 15 != _DIRECTORY]
        inode = view.inodes.get(ino)
        if inode is not None and inode.idle:
            del view.inodes[ino]
        return directories, others

    return engine.call(take)
