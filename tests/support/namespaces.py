"""A process in a mount namespace of its own, which holds no mount but the one of its test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

# A new namespace has a copy of each mount. Those of tests that run beside this one could not be
# unmounted while it is there: they are let go of at once. In a user namespace, without which an
# ordinary user makes none, they cannot be (mount_namespaces(7)).
_PROGRAM = r"""
import ctypes, os, re, sys
keep, *words = sys.argv[1:]
libc = ctypes.CDLL(None)
user, group = os.geteuid(), os.getegid()
new_mounts, new_user, private_recursively, detach = 0x20000, 0x10000000, 0x44000, 2
if libc.unshare(new_mounts | (new_user if user else 0)):
    sys.exit(1)
if user:
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
libc.mount(b"none", b"/", None, ctypes.c_ulong(private_recursively), None)
with open("/proc/self/mountinfo", "rb") as file:
    rows = [line.partition(b" - ") for line in file]
for before, _, after in rows:
    place = re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), before.split()[4])
    if after.startswith(b"fuse.cowfs ") and place != os.fsencode(keep):
        libc.umount2(place, detach)
os.execvp(words[0], words)
"""


def elsewhere(keep: Path, words: Sequence[str]) -> list[str]:
    """The command line that runs a program in a mount namespace of its own, with the mount at
    `keep`; as root or as its root. It ends with 1 where no namespace can be made."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(keep), *words]
