"""The options of a mount (mount(8), fuse(8)).

Threading: pure functions, but for two statvfs(3).
"""

from __future__ import annotations

import os


def mount_options(store: str, *, base_fd: int, mountpoint: str, allow_other: bool) -> set[str]:
    """Options for libfuse. The source of the mount is the store: commands find it by that.

    What the file systems of the base and of the mountpoint forbid (set-user-ID programs, devices,
    programs) is forbidden here, too: no mount may be a way around it. For a user other than root
    fusermount3(1) forbids set-user-ID programs and devices in any case.
    """
    options = {f"fsname={mount_source(store)}", "subtype=cowfs", "default_permissions"}
    flags = os.fstatvfs(base_fd).f_flag | os.statvfs(mountpoint).f_flag
    if os.geteuid() == 0:
        options.add("nodev" if flags & os.ST_NODEV else "dev")
        options.add("nosuid" if flags & os.ST_NOSUID else "suid")
    if flags & os.ST_NOEXEC:
        options.add("noexec")
    if allow_other:
        options.add("allow_other")
    return options


def mount_source(store: str) -> str:
    """The store's path as the source of the mount: bytes that options of libfuse cannot carry, or
    mountinfo would escape, are written as %XX (client/places.py reads it)."""
    return "".join(
        chr(byte)
        if (chr(byte).isalnum() and byte < 128) or chr(byte) in "/._-+=@:~"
        else f"%{byte:02X}"
        for byte in os.fsencode(store)
    )
