"""The process that stands by (daemon/standby.py) takes nothing but the daemon's end for that."""

from __future__ import annotations

import os
import subprocess
import sys

# Python's sigtimedwait returns as if a signal had come when the process was stopped or frozen, and
# goes on after the time limit (3.11 to 3.14; with what was in memory in place of the signal's
# data). Here it always does. The daemon ends when its stdin does; told of it: each look of the one
# that stands by, and an abort.
_DAEMON = """
import os, signal, sys
from cowfs.daemon import standby
told, how = int(sys.argv[1]), sys.argv[2]
def keep_only(pipe):
    for fd in range(3, 100):
        if fd not in (pipe, told):
            os.closerange(fd, fd + 1)
standby._keep_only = keep_only
standby.abort = lambda connection: os.write(told, b"aborted %d\\n" % connection)
wait = signal.sigtimedwait
signal.sigtimedwait = lambda which, seconds: (
    os.write(told, b"look\\n") if seconds else wait(which, seconds)
)
one = standby.Standby(lambda: os.write(told, b"began anew\\n"))
os.write(one._pipe, b"7\\n")
os.read(0, 1)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
one.dismiss()
"""


def _said(how: str) -> list[bytes]:
    """What was told after the daemon had lived for several looks: until everything has ended."""
    reading, writing = os.pipe()
    words = [sys.executable, "-c", _DAEMON, str(writing), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(writing,)) as daemon:
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            lines = [told.readline()]
            while len(lines) < 5 and lines[-1] == b"look\n":
                lines.append(told.readline())
            assert daemon.stdin is not None
            daemon.stdin.close()
            lines += told.readlines()
    return [line for line in lines if line != b"look\n"]


def test_a_wait_that_was_interrupted_is_not_the_end() -> None:
    assert _said("in order") == []


def test_the_end_by_a_signal_is() -> None:
    assert _said("killed") == [b"began anew\n"]
