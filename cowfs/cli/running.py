"""Running a command of the user's as if cowfs were not in between.

It has the terminal, the standard streams and the process group of `cowfs`. Signals of the terminal
(Ctrl-C) reach it by themselves; those that somebody sends to `cowfs` are passed on.

Threading: for the only thread of a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""As shells have it."""
_PASSED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_SENT_BY_PROCESS = 0
"""si_code of kill(2); what a terminal sends has another one (sigaction(2))."""


def run(words: Sequence[str], directory: str, *, stdout: int | None = None) -> int:
    """Run a command in a directory; its exit code, 128 and the number for one that a signal ended.

    Raises OSError when it cannot be started: see `exit_code_of`.
    """
    watched = _PASSED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = subprocess.Popen(words, cwd=directory, stdout=stdout, preexec_fn=unblock)
        while process.poll() is None:
            told = signal.sigwaitinfo(watched)
            if told.si_signo in _PASSED and told.si_code == _SENT_BY_PROCESS:
                process.send_signal(told.si_signo)
    finally:
        unblock()
    code = process.returncode
    return code if code >= 0 else 128 - code


def exit_code_of(error: OSError) -> int:
    """The exit code for a command that could not be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


@contextlib.contextmanager
def adopting() -> Iterator[Callable[[], bool]]:
    """Whatever is started below this process stays below it, also when its own parent ends.

    Gives a function that tells whether any process that came since is left.
    """
    before = _children()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield lambda: _some_left(before)
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _some_left(before: set[int]) -> bool:
    left = False
    for pid in _children() - before:
        try:
            left |= os.waitpid(pid, os.WNOHANG)[0] == 0  # one that has ended is not left
        except ChildProcessError:
            continue
    return left


def _children() -> set[int]:
    """The processes whose parent this is (proc_pid_stat(5))."""
    found, parent = set(), b"%d" % os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                _, _, after_name = file.read().rpartition(b")")
        except OSError:
            continue
        if after_name.split()[1] == parent:
            found.add(int(pid))
    return found


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return all(os.isatty(fd) for fd in (0, 2))
