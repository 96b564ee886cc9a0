"""A terminal in which an agent runs, as a person uses it.

What is on the screen is not followed: programs paint it in parts, in any order. `until` waits for a
text among what came since the last time; blanks do not count, since programs move the cursor
instead of writing them.

Threading: for one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

from tests.clients.agents import SECONDS, Agent

UP, ESCAPE, ENTER, CLEAR_LINE = "\x1b[A", "\x1b", "\r", "\x15"
_LINES, _COLUMNS = 40, 120
_CONTROL = re.compile(
    rb"\x1b\[[0-9;?<>=]*[ -/]*[@-~]"  # ECMA-48: control sequences,
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system commands,
    rb"|\x1b[ -/]*[0-~]"  # and other escape sequences
)


class Terminal:
    """The person's side of it."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self._fd = fd
        self._data = b""
        self.process = process

    def type(self, text: str, shown: str = "") -> None:
        """Press keys; wait until the screen shows something of it, by default the text."""
        os.write(self._fd, text.encode())
        self.until(shown or text)

    def press(self, key: str) -> None:
        os.write(self._fd, key.encode())

    def until(self, *texts: str) -> None:
        """Wait until all these texts have been painted, in any order."""
        wanted = ["".join(text.split()) for text in texts]
        end = time.monotonic() + SECONDS
        while missing := [text for text in wanted if text not in self._painted()]:
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"the screen never showed {missing}: {self._painted()}")
        self._data = b""

    def _painted(self) -> str:
        return "".join(_CONTROL.sub(b"", self._data).decode("utf-8", "replace").split())

    def _read(self, seconds: float) -> bool:
        """Take what comes; False if nothing does, or nothing will any more."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # its last process has ended (EIO in pty(7))
            return False
        self._data += data
        return bool(data)

    def finish(self) -> int:
        """Wait for the end of the program; its exit code."""
        while self._read(SECONDS):
            pass
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def in_terminal(
    agent: Agent, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """A program in the agent's room and in a terminal, in the agent's environment or another one;
    afterwards nothing that it started is left."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", _LINES, _COLUMNS, 0, 0))
        process = subprocess.Popen(
            agent.place.room.command(command),
            cwd=agent.top,
            env={**(environment or agent.environment()), "TERM": "xterm-256color"},
            pass_fds=agent.place.room.descriptors,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.terminate()
        process.wait(SECONDS)
        os.close(ours)
