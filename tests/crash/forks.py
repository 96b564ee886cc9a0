"""Children that report line by line until they are killed.

For a process that has no other threads: a forked child has only the thread that forked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.crash.knowledge import CrashError

Report = Callable[..., None]
"""Called with a word and values that JSON can carry; what was reported outlives a kill."""


class Child:
    """A forked child. Iterate over its reports to the end, then `wait`."""

    def __init__(self, work: Callable[[Report], None]) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _work(work, writing)
        os.close(writing)
        self._pipe = os.fdopen(reading, "r", encoding="utf-8")
        self._failure = ""
        self._killed = False

    def reports(self) -> Iterator[list[Any]]:
        """[word, value ...] as they come. Ends with the child."""
        with self._pipe:
            for line in self._pipe:
                report = json.loads(line)
                if report[0] == "failed":
                    self._failure = report[1]
                else:
                    yield report

    def kill(self) -> None:
        """SIGKILL."""
        self._killed = True
        os.kill(self.pid, signal.SIGKILL)

    def forgive(self) -> None:
        """It may fail from now on, because of what happens to the things that it uses."""
        self._killed = True

    def wait(self) -> bool:
        """Whether it was killed; False when it ended in order. Raises CrashError if it failed
        before it was killed."""
        _, status = os.waitpid(self.pid, 0)
        if self._killed:
            return True
        if self._failure or not (status == 0 or os.WIFSIGNALED(status)):
            raise CrashError(self._failure or f"a child ended with status {status}")
        if status and os.WTERMSIG(status) != signal.SIGKILL:
            raise CrashError(f"a child was ended by signal {os.WTERMSIG(status)}")
        return status != 0


def spin(seconds: float) -> None:
    """Wait without giving the processor away."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _work(work: Callable[[Report], None], pipe: int) -> None:
    def report(*values: Any) -> None:
        os.write(pipe, json.dumps(values).encode() + b"\n")

    try:
        work(report)
    except BaseException:
        text = json.dumps(["failed", traceback.format_exc()[-20_000:]])
        os.write(pipe, text.encode() + b"\n")
        os._exit(1)
    os._exit(0)
