"""Direct writes and readers of the page cache see the same file (open(2), O_DIRECT)."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import pytest

from tests.mount.asynchronous import DirectWriter
from tests.support.mounting import Mounted

_SIZE = 640 << 10
_ROUNDS = 100
_READERS = 2

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="needs the call numbers of x86-64"
)


class _Readers:
    """Threads that read a file through the page cache all the time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read) for _ in range(_READERS)]

    def _read(self) -> None:
        fd = os.open(self._path, os.O_RDONLY)
        try:
            while not self._ended.is_set():
                os.pread(fd, _SIZE, 0)
        finally:
            os.close(fd)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_an_asynchronous_write_is_seen_by_readers_of_the_page_cache(module_mount: Mounted) -> None:
    path = module_mount.mountpoint / "database"
    path.write_bytes(bytes(_SIZE))
    direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
    buffered = os.open(path, os.O_RDONLY)
    writer = DirectWriter(direct, _SIZE)
    try:
        with _Readers(path):
            for number in range(1, _ROUNDS + 1):
                data = bytes([number]) * _SIZE
                writer.write(data)
                assert os.pread(buffered, _SIZE, 0) == data, f"round {number} is not seen"
    finally:
        writer.close()
        os.close(buffered)
        os.close(direct)
