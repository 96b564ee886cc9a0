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
    # `apply` makes the new name a file of its own, of mode 0600 and without xattrs.
    "apply-new-link-of-a-changed-file": [
        ("link", "c", "d/e"),
        ("truncate", "d/e", 4096),
        ("remount", "apply"),
    ],
    # `apply` stops: the old content is not in the store.
    "apply-link-over-a-removed-file": [
        ("unlink", "c"),
        ("rename", "a/b", "b", 0),
        ("link", "b/a", "c"),
        ("remount", "apply"),
    ],
    # After `apply` the old directory, which only history has, is taken for the one that has its
    # place in the base now.
    "restore-after-apply-took-a-place": [
        ("unlink", "d/b"),
        ("checkpoint", True),
        ("rmdir", "d"),
        ("rename", "a", "d", 0),
        ("remount", "apply"),
        ("restore", 0),
    ],
    "restore-after-apply-moved-a-directory-over-another": [
        ("rename", "d", "a/b/c", 0),
        ("remount", "apply"),
        ("restore", 0),
    ],
    # The watchers' announcement of the move kills the kernel's inode, which the handle holds.
    "restore-moves-a-held-directory-that-is-watched": [
        ("open", 0, "d", 0o200000, 0),
        ("watch", True),
        ("rename", "d", "x", 0),
        ("restore", 0),
    ],
    # `apply` links two symbolic links of the same target.
    "apply-two-equal-symlinks": [
        ("rename", "e", "a/c", 0),
        ("rename", "a", "b", 0),
        ("symlink", "a", "e"),
        ("remount", "apply"),
    ],
    # The same in another order of names.
    "apply-link-over-a-removed-file-from-a-later-name": [
        ("unlink", "c"),
        ("rename", "a/b", "z", 0),
        ("link", "z/a", "c"),
        ("remount", "apply"),
    ],
    # Two new names of a file of the base.
    "apply-two-links": [
        ("link", "a/a", "a/b/c/d"),
        ("link", "d/b", "z"),
        ("remount", "apply"),
    ],
    # The base has a new directory where a removed one lay that comes back.
    "restore-after-apply-made-a-directory-anew": [
        ("checkpoint", False),
        ("unlink", "a/b/a"),
        ("rmdir", "a/b/c"),
        ("rmdir", "a/b"),
        ("mkdir", "a/b", 0o755),
        ("mkdir", "a/b/z", 0o755),
        ("remount", "apply"),
        ("checkpoint", False),
        ("restore", 1),
    ],
}
