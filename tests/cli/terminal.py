"""`cowfs` on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.command import Cowfs


class Terminal:
    """The user's side."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = b""

    def read_until(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self._master, 4096)

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def rest(self) -> str:
        """Everything, up to the end of the command."""
        try:
            while data := os.read(self._master, 4096):
                self.seen += data
        except OSError:  # EIO: the other side is closed
            pass
        return self.seen.decode()


@contextmanager
def terminal(cowfs: Cowfs, *arguments: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """Run a command in a session of its own, whose terminal is this one."""
    master, slave = pty.openpty()
    take = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", take, *cowfs.argv(*arguments)],
        cwd=cowfs.cwd,
        env=cowfs.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        with process:
            try:
                yield Terminal(master), process
                process.wait(30)
            finally:
                process.kill()
    finally:
        os.close(master)
