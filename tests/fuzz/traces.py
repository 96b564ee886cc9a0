"""Reduced traces of the runs that failed, and what was wrong. Each must run on a mount now."""

from __future__ import annotations

from tests.fuzz.side import Step

TRACES: dict[str, list[Step]] = {
    # A name that was removed and made again in another life (the driver relied on syncfs, which
    # FUSE does not pass on).
    "name-made-again-after-a-kill": [
        ("unlink", "e"),
        ("remount", "kill"),
        ("symlink", "c/a", "e"),
    ],
    # A held file whose name was of another kind in the state in between.
    "held-fifo": [
        ("mknod", "a/d", 0o10755),
        ("rename", "a/d", "d/b", 0),
        ("checkpoint", True),
        ("restore", 1),
        ("restore", 1),
        ("utimensat", "d/b", 0, 1, True),
        ("open", 1, "d/b", 0o4002, 0),
        ("restore", 1),
        ("undo",),
    ],
    # A directory that was removed is dead for the kernel, also when a restore brings it back.
    "removed-directory-comes-back": [
        ("rmdir", "a/b/c"),
        ("unlink", "a/b/a"),
        ("open", 5, "a/b", 0o4000, 0),
        ("rmdir", "a/b"),
        ("restore", 0),
        ("mkdir", "a/b/e", 0o755),
    ],
}
