"""Whether the process of a session is still there.

Threading: pure functions on /proc.
"""

from __future__ import annotations

import functools

from cowfs.format.sessions import SessionRecord

_ENDED = (b"Z", b"X", b"x")
"""States of a process that runs no more."""


@functools.cache
def boot_id() -> str:
    """Of this boot of the machine (proc_sys_kernel(5)), "" where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def born(pid: int) -> int:
    """When a process was started, in clock ticks since the machine was (proc_pid_stat(5)); 0 when
    it has ended, whether somebody waited for it or not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[19]) if len(fields) > 19 and fields[0] not in _ENDED else 0


def is_running(record: SessionRecord) -> bool:
    """Whether its process is there. Of one whose process nobody knows: whether the machine was not
    started since."""
    if record.boot != boot_id():
        return False
    return not record.pid or (record.born != 0 and born(record.pid) == record.born)
