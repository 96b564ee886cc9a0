"""Processes that change a tree at random, without pause, whatever is restored under them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import shutil
import time
from pathlib import Path

_EXPECTED = frozenset(
    {"ENOENT", "EEXIST", "ENOTDIR", "EISDIR", "ENOTEMPTY", "EINVAL", "ESTALE", "ENODATA", "EPERM"}
) | {"EACCES", "EXDEV", "EMLINK", "ELOOP", "ETXTBSY"}
"""What a call may fail with while others change the same names."""


class Storm:
    """One process's random work below `top`: a few names that all processes share."""

    def __init__(self, top: Path, seed: int) -> None:
        self._top = top
        self._rng = random.Random(seed)
        self._handles: list[int] = []
        self._mappings: list[mmap.mmap] = []

    def run(self, seconds: float) -> str:
        """Work until told by the clock; returns the first error that nothing explains, or ""."""
        os.chdir("/")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            step = self._rng.choice(self._STEPS)
            try:
                step(self)
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "?")
                if name not in _EXPECTED:
                    return f"{step.__name__}: {name} {error.filename!r}"
            except ValueError:
                pass  # an empty or shrunk file cannot be mapped
        return ""

    def _directory(self) -> Path:
        path = self._top
        for _ in range(self._rng.randrange(3)):
            path = path / f"d{self._rng.randrange(3)}"
        return path

    def _path(self) -> Path:
        return self._directory() / f"f{self._rng.randrange(6)}"

    def save(self) -> None:
        path = self._path()
        temporary = path.with_name(f"tmp{os.getpid()}")
        fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, self._rng.randbytes(self._rng.choice((10, 5000, 100_000))))
        finally:
            os.close(fd)
        os.rename(temporary, path)

    def write(self) -> None:
        fd = os.open(self._path(), os.O_CREAT | os.O_RDWR)
        try:
            os.pwrite(fd, self._rng.randbytes(3000), self._rng.randrange(200_000))
            if self._rng.random() < 0.2:
                os.fsync(fd)
        finally:
            os.close(fd)

    def append(self) -> None:
        fd = os.open(self._path(), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, b"one more line\n")
        finally:
            os.close(fd)

    def hold(self) -> None:
        if len(self._handles) > 10:
            os.close(self._handles.pop(0))
        self._handles.append(os.open(self._path(), os.O_CREAT | os.O_RDWR))

    def use_held(self) -> None:
        if self._handles:
            fd = self._rng.choice(self._handles)
            os.pwrite(fd, self._rng.randbytes(500), self._rng.randrange(100_000))
            os.pread(fd, 100_000, 0)
            os.fstat(fd)
            if self._rng.random() < 0.3:
                os.ftruncate(fd, self._rng.randrange(50_000))

    def map(self) -> None:
        if len(self._mappings) > 3:
            self._mappings.pop(0).close()
        fd = os.open(self._path(), os.O_CREAT | os.O_RDWR)
        try:
            # Never stored to beyond what stays: a restored file may be shorter (SIGBUS).
            os.ftruncate(fd, max(4096, os.fstat(fd).st_size))
            self._mappings.append(mmap.mmap(fd, 4096, access=mmap.ACCESS_COPY))
        finally:
            os.close(fd)

    def truncate(self) -> None:
        os.truncate(self._path(), self._rng.randrange(100_000))

    def remove(self) -> None:
        os.unlink(self._path())

    def move(self) -> None:
        os.rename(self._path(), self._path())

    def link(self) -> None:
        os.link(self._path(), self._path())

    def symlink(self) -> None:
        os.symlink("f1", self._path())

    def make_directory(self) -> None:
        os.mkdir(self._directory() / f"d{self._rng.randrange(3)}")

    def move_directory(self) -> None:
        os.rename(
            self._directory() / f"d{self._rng.randrange(3)}",
            self._directory() / f"d{self._rng.randrange(3)}",
        )

    def remove_tree(self) -> None:
        if self._rng.random() < 0.2:
            path = self._directory()
            if path != self._top:
                shutil.rmtree(path, ignore_errors=True)

    def chmod(self) -> None:
        os.chmod(self._path(), self._rng.choice((0o600, 0o640, 0o755)))

    def attribute(self) -> None:
        os.setxattr(self._path(), "user.storm", self._rng.randbytes(10))

    def look(self) -> None:
        for name in os.listdir(self._directory()):
            with contextlib.suppress(OSError):
                os.lstat(os.path.join(self._directory(), name))

    def read(self) -> None:
        self._path().read_bytes()

    _STEPS = (
        *(save, save, write, write, append, hold, use_held, use_held, map, truncate),
        *(remove, move, link, symlink, make_directory, make_directory, move_directory),
        *(remove_tree, chmod, attribute, look, read),
    )
