"""Runs in the virtual machine: waits for a word on the second serial line, does what the request on
the fourth disk says, and reports line by line, in JSON.

Everything is imported before it says that it is ready: from there the machine's state is saved, and
each request finds the same machine, whose clock and random numbers are set anew. A report is on
its way out of the machine when `Line.report` returns; so a cut of the power does not take it back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import subprocess
import sysconfig
import termios
import time
import traceback
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.crash import mounts
from tests.crash.forks import Child
from tests.crash.local import make_base
from tests.crash.replay import check, finish
from tests.support.mounting import mounted
from tests.vm import story

DATA, REQUEST = "/dev/vdc", "/dev/vdd"
REQUEST_BYTES = 4 << 20
MARK_BYTES = 4096
"""At the end of the disk with the data, behind the file system: the reports in between."""
_LINE = "/dev/ttyS1"
_AT = Path("/data")
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207  # linux/random.h

Report = Callable[..., None]


class Line:
    """The serial line to the host."""

    def __init__(self) -> None:
        self._fd = os.open(_LINE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        tty.setraw(self._fd)

    def report(self, *values: Any) -> None:
        os.write(self._fd, json.dumps(values).encode() + b"\n")
        termios.tcdrain(self._fd)

    def wait(self) -> None:
        while not os.read(self._fd, 100).endswith(b"\n"):
            pass


def main() -> None:
    """Serve requests until the machine ends."""
    line = Line()
    line.report("ready")
    while True:
        line.wait()
        request = _request()
        _awake(request)
        # A process of its own, so that one that fails or hangs leaves nothing behind here.
        pid = os.fork()
        if pid == 0:
            _act(request, line.report)
        _, status = os.waitpid(pid, 0)
        line.report("end", os.waitstatus_to_exitcode(status))


def _request() -> dict[str, Any]:
    """What the host wrote, not what the kernel remembers of the disk."""
    with mmap.mmap(-1, REQUEST_BYTES) as buffer:
        fd = os.open(REQUEST, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            os.preadv(fd, [buffer], 0)
        finally:
            os.close(fd)
        found: dict[str, Any] = json.loads(buffer[:].rstrip(b"\0"))
        return found


def _awake(request: dict[str, Any]) -> None:
    """Two machines that woke from the same state must not draw the same random numbers."""
    time.clock_settime(time.CLOCK_REALTIME, request["now"])
    seed = bytes.fromhex(request["entropy"])
    with open("/dev/urandom", "wb", buffering=0) as file:
        text = struct.pack("ii", 8 * len(seed), len(seed)) + seed
        fcntl.ioctl(file, _RNDADDENTROPY, text)
        fcntl.ioctl(file, _RNDRESEEDCRNG)


def _act(request: dict[str, Any], report: Report) -> None:
    try:
        _DOES[request["do"]](request, report)
    except BaseException:
        report("failed", traceback.format_exc()[-20_000:])
        os._exit(1)
    os._exit(0)


# -- the disk with the data ---------------------------------------------------------------------


@contextlib.contextmanager
def _data(options: str) -> Iterator[None]:
    """Mounted while the block runs."""
    _run("mount", "-t", "ext4", "-o", options or "defaults", DATA, str(_AT))
    try:
        yield
    finally:
        _run("umount", str(_AT))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{words} failed: {done.stdout}{done.stderr}")


def _marking(report: Report) -> Report:
    """Reports also go to the end of the disk, in the order of what else is written there."""
    fd = os.open(DATA, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    at = os.lseek(fd, 0, os.SEEK_END) - MARK_BYTES
    buffer, number = mmap.mmap(-1, MARK_BYTES), 0

    def both(*values: Any) -> None:
        nonlocal number
        number += 1
        buffer[:] = json.dumps([number, *values]).encode().ljust(MARK_BYTES, b"\0")
        os.pwritev(fd, [buffer], at)
        report(*values)

    return both


def _without_sync() -> None:
    """Breaks what is tested, to see that it is noticed: LMDB leaves it to the kernel when what it
    writes reaches the disk, in every process that is started from now on."""
    text = "import functools, lmdb; lmdb.open = functools.partial(lmdb.open, sync=False)\n"
    (Path(sysconfig.get_path("purelib")) / "without-sync.pth").write_text(text)


# -- requests -----------------------------------------------------------------------------------


def _live(request: dict[str, Any], report: Report) -> None:
    """One life of the workspace: mount it, compare it with what is known, and work."""
    if not request["syncs"]:
        _without_sync()
    base, store = _AT / "base", _AT / "store"
    with _data(request["options"]):
        if not base.exists():
            make_base(_AT / "unfinished")
            os.sync()
            (_AT / "unfinished").rename(base)
            os.sync()
        if request["marks"]:
            report = _marking(report)
        known = story.told(story.base_as_made(), story.from_json(request["lives"]))
        with mounted(base, store, check=False) as mount:
            state = mounts.look(mount, known)
            report("start", known.states.index(state))
            mounts.make_calls(mount, story.calls_of(state, request["seed"]), report)
            if code := mount.process.wait():
                raise AssertionError(f"the daemon ended with {code}:\n{mount.log()}")
    report("over")


def _check(request: dict[str, Any], report: Report) -> None:
    """What a crash left on the disk, without a daemon."""
    with _data(request["options"]):
        lives = story.from_json(request["lives"])
        if not any(life.reports for life in lives) and not (_AT / "base").exists():
            return  # cut while the base was made
        known = story.told(story.base_as_made(), lives)
        # A process of its own, for it leaves the base open.
        finish(Child(lambda _: check(_AT / "store", _AT / "base", known)))


def _command(request: dict[str, Any], report: Report) -> None:
    """A command in the checkout as some user, its lines reported. The disk is for its files."""
    with _data(request["options"]):
        _AT.chmod(0o1777)
        done = subprocess.Popen(
            ["setpriv", f"--reuid={request['user']}", f"--regid={request['user']}", "--init-groups"]
            + request["words"],
            env={**os.environ, "HOME": "/tmp", "TMPDIR": str(_AT), "PYTHONPATH": "/opt/cowfs"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert done.stdout is not None
        for text in done.stdout:
            report("line", text.rstrip("\n"))
        report("code", done.wait())


_DOES: dict[str, Callable[[dict[str, Any], Report], None]] = {
    "live": _live,
    "check": _check,
    "command": _command,
}


if __name__ == "__main__":
    main()
