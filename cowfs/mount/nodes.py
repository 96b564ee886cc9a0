"""Node ids: what the kernel calls an inode of the mount.

A node id is (view, ino) in 64 bits: the view's number in the upper 16, the inode number below. The
main view is 0, so its node ids are its inode numbers and the root is 1, as FUSE wants. Checkpoints
that somebody looks into have the other numbers (volume/browsing.py), but for the last ones:

- `GHOSTS_INO`: the hidden directory of ghosts (mount/upkeep.py).
- `NAMES`: `.cowfs`, `.cowfs/checkpoints`, labels.
- `TOPS`: the root directories of checkpoints; below is the checkpoint's id, which has 48 bits. So
  they can be listed before anybody looks into them.

File handles of the main view are inode numbers (mount/file_requests.py); those of things in other
views are above `INO_MASK` and below `GHOSTS_INO`, too.

Threading: constants.
"""

from __future__ import annotations

VIEW_SHIFT = 48
INO_MASK = (1 << VIEW_SHIFT) - 1
GHOSTS_INO = 0xFFFF << VIEW_SHIFT
NAMES = 0xFFFE
TOPS = 0xFFFD
BROWSE_NAME = b".cowfs"
"""In the root of the main view: it is not listed, and an entry of the project goes before it."""
BROWSE_INO = NAMES << VIEW_SHIFT | 1
CHECKPOINTS_INO = NAMES << VIEW_SHIFT | 2
