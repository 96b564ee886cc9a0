"""What the daemon takes over from whoever started it, and what not.

Its capabilities are kept, where it is root's: what it needs of them (to mount, to read and write
files of any owner, to set owners and modes, to make devices) is as good as all. It may gain new
ones by a set-user-ID program: without fusermount3 an ordinary user's mount could not be removed.

Threading: for the main thread, before it starts others.
"""

from __future__ import annotations

import contextlib
import os
import resource

from cowfs.daemon.memory import keep_freed

_KEPT = frozenset({"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ"})
_KEPT_PREFIXES = ("COWFS_", "LC_", "PYTHON")


def reduced(environment: dict[str, str]) -> dict[str, str]:
    """The variables that a daemon needs: it outlives the session that it comes from, whose others
    (keys and passwords, sockets of agents) are not its business."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }


def settle() -> None:
    """Files are for their user alone; no directory is kept busy; file content in memory does not
    land in a core dump; as many descriptors as allowed, since the soft limit is for programs that
    use select(2); memory that was freed is kept while there is work."""
    keep_freed()
    os.umask(0o077)
    os.chdir("/")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def pass_nothing_on() -> None:
    """No program that is started gets a descriptor of ours, but for the first three. LMDB's data
    file would be passed on, to fusermount3(1) for one."""
    for name in os.listdir("/proc/self/fd"):
        if (fd := int(name)) > 2:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.set_inheritable(fd, False)
