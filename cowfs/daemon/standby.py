"""Stands by in case the daemon is killed: frees the mount, and starts a new daemon if wanted.

A killed process ends when all its threads have ended. One that is in a system call through the
mount (a ghost, mount/ghosts.py, or an invalidation that waits for a page) waits for the file system
that died with it, and cannot be interrupted: the descriptor of /dev/fuse stays open, and everyone
who touches the mount hangs. So a process without that descriptor stands by. When the daemon's main
thread is gone and the rest is not, it aborts the connection (Documentation/filesystems/fuse.rst of
Linux, "Control filesystem"); the mount then answers "Transport endpoint is not connected", as after
any crash, and is cleaned up by the next `cowfs mount`, or right away by this process, which then
becomes the new daemon.

Threading: `Standby` is for the main thread, before it starts others: a forked process has only the
thread that forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_CONTROL = "/sys/fs/fuse/connections"
_GRACE_SECONDS = 0.2
"""How long the daemon's threads may take to end after its main thread."""
_END_SECONDS = 5.0
_LOOK_SECONDS = 5
_EXITING = 0x4
"""PF_EXITING of Linux' `include/linux/sched.h`."""
_DISMISSED = b"dismissed\n"
_libc = ctypes.CDLL(None, use_errno=True)


class Standby:
    """The process that stands by. It ends with the daemon, however that ends."""

    def __init__(self, restart: Callable[[], None] | None = None) -> None:
        """`restart` is called in that process when the daemon was killed and is gone."""
        reading, self._pipe = os.pipe()
        daemon = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _stand_by(reading, daemon, restart)
            finally:
                os._exit(0)
        os.close(reading)

    def watch(self, mountpoint: str) -> None:
        """The mount is there; it must answer."""
        connection = os.minor(os.stat(mountpoint).st_dev)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"%d\n" % connection)

    def dismiss(self) -> None:
        """The daemon ends in order."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, _DISMISSED)
        os.close(self._pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR1)
        os.waitpid(self._pid, 0)


def _stand_by(pipe: int, daemon: int, restart: Callable[[], None] | None) -> None:
    _libc.prctl(_PR_SET_NAME, b"cowfs-standby", 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    # Sent when the thread that forked us ends, whatever becomes of the others (prctl(2)).
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    _keep_only(pipe)
    os.chdir("/")
    heard, ended = b"", False
    # What it returns is not asked for: that it was called is the time to look. Where this process
    # was stopped or frozen past the time limit, Python returns as if a signal had come.
    while not _is_over(daemon, heard, ended):
        signal.sigtimedwait({signal.SIGUSR1}, _LOOK_SECONDS)
        more, ended = _hear(pipe, 0)
        heard += more
    if not ended:
        more, ended = _hear(pipe, _GRACE_SECONDS)
        heard += more
    if not ended and heard and not heard.endswith(_DISMISSED):
        _in_a_child(lambda: abort(int(heard)))
        more, ended = _hear(pipe, _END_SECONDS)
        heard += more
    if restart is not None and ended and heard and not heard.endswith(_DISMISSED):
        _forget_signals()
        restart()


def _is_over(daemon: int, heard: bytes, ended: bool) -> bool:
    """Whether the daemon is gone, is about to be, or has said that it ends in order."""
    if ended or heard.endswith(_DISMISSED):
        return True
    return os.getppid() != daemon or is_exiting(daemon)


def is_exiting(pid: int) -> bool:
    """Whether a process's main thread has ended or is about to. The signal of its end is only sent
    when it has closed its files; if it is the last thread, that waits for the file system."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = int(file.read().rpartition(b")")[2].split()[6])  # field 9 (proc(5))
    except (OSError, ValueError, IndexError):
        return True
    return bool(flags & _EXITING)


def _forget_signals() -> None:
    """Each thread of the daemon that we passed to and that then ended sent one."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    while signal.sigtimedwait(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _in_a_child(fn: Callable[[], None]) -> None:
    """What changes the process it runs in, as `abort` may, is done by another one."""
    pid = os.fork()
    if pid == 0:
        try:
            fn()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _hear(pipe: int, seconds: float) -> tuple[bytes, bool]:
    """What the daemon wrote, and whether it has no descriptors any more."""
    end, heard = time.monotonic() + seconds, b""
    while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(pipe, 100)
        if not piece:
            return heard, True
        heard += piece
    return heard, False


def _keep_only(pipe: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))


def abort(connection: int) -> None:
    """Abort a FUSE connection: all its requests fail, now and later. Raises OSError."""
    path = f"{_CONTROL}/{connection}/abort"
    if not os.path.exists(path) and os.geteuid() == 0:
        _mount_control()
    with open(path, "w", encoding="ascii") as file:
        file.write("1")


def _mount_control() -> None:
    """For this process alone: distributions mount it for all, containers often do not."""
    if (
        _libc.unshare(_CLONE_NEWNS) != 0
        or _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0
        or _libc.mount(b"fusectl", _CONTROL.encode(), b"fusectl", 0, None) != 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
