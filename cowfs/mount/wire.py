"""The FUSE protocol in bytes: what requests, replies and notifications look like.

Source: include/uapi/linux/fuse.h of Linux, protocol 7.31; everything is in the machine's own byte
order. Names are those of the header, without `FUSE_`.

Threading: constants and stateless functions.
"""

from __future__ import annotations

from struct import Struct

# Opcodes.
LOOKUP = 1
FORGET = 2
GETATTR = 3
SETATTR = 4
READLINK = 5
SYMLINK = 6
MKNOD = 8
MKDIR = 9
UNLINK = 10
RMDIR = 11
RENAME = 12
LINK = 13
OPEN = 14
READ = 15
WRITE = 16
STATFS = 17
RELEASE = 18
FSYNC = 20
SETXATTR = 21
GETXATTR = 22
LISTXATTR = 23
REMOVEXATTR = 24
INIT = 26
OPENDIR = 27
RELEASEDIR = 29
FSYNCDIR = 30
CREATE = 35
BATCH_FORGET = 42
FALLOCATE = 43
READDIRPLUS = 44
RENAME2 = 45
LSEEK = 46
TMPFILE = 51
"""Of protocol 7.37; the kernel asks whatever was agreed on."""

# Headers.
REQUEST = Struct("=IIQQIII")
"""len, opcode, unique, nodeid, uid, gid, pid; of fuse_in_header, which is longer."""
REQUEST_BYTES = 40
REPLY = Struct("=IiQ")
"""len, error (0 or a negative errno), unique: fuse_out_header."""

# INIT.
INIT_IN = Struct("=IIII")
"""major, minor, max_readahead, flags."""
INIT_OUT = Struct("=IIIIHHIIHHI28x")
"""major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran,
max_pages, map_alignment, flags2."""
MAJOR, MINOR = 7, 31
WAITS_FOR_WRITEBACK = 44
"""The minor version of the first kernel (Linux 6.16) of which a page is under write-back until the
WRITE is answered; before, it wrote back copies."""
ASYNC_READ = 1 << 0
ATOMIC_O_TRUNC = 1 << 3
EXPORT_SUPPORT = 1 << 4
BIG_WRITES = 1 << 5
AUTO_INVAL_DATA = 1 << 12
DO_READDIRPLUS = 1 << 13
WRITEBACK_CACHE = 1 << 16
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23

# What follows the header of a request.
TWO = Struct("=II")
"""Of many: getattr_flags; mode, umask; flags, open_flags; size, padding."""
MKNOD_IN = Struct("=IIII")
"""mode, rdev, umask, padding."""
CREATE_IN = Struct("=IIII")
"""flags, mode, umask, open_flags."""
NODE = Struct("=Q")
RENAME2_IN = Struct("=QII")
"""newdir, flags, padding."""
READ_IN = Struct("=QQI")
"""fh, offset, size; also the beginning of a WRITE."""
WRITE_IN_BYTES = 40
FALLOCATE_IN = Struct("=QQQI4x")
"""fh, offset, length, mode."""
LSEEK_IN = Struct("=QqI4x")
"""fh, offset (of any sign), whence."""
LSEEK_OUT = Struct("=Q")
FORGET_ONE = Struct("=QQ")
"""nodeid, nlookup."""
SETATTR_IN = Struct("=I12xQ8xqqqIIII4xII4x")
"""valid, size, atime, mtime, ctime, and their nanoseconds, mode, uid, gid."""

# `valid` of SETATTR.
SET_MODE = 1 << 0
SET_UID = 1 << 1
SET_GID = 1 << 2
SET_SIZE = 1 << 3
SET_ATIME = 1 << 4
SET_MTIME = 1 << 5
SET_CTIME = 1 << 10
SET_ALL = SET_MODE | SET_UID | SET_GID | SET_SIZE | SET_ATIME | SET_MTIME | SET_CTIME

# Replies.
ENTRY = Struct("=QQQQIIQQQqqqIIIIIIIIII")
"""fuse_entry_out: nodeid, generation, entry_valid, attr_valid, their nanoseconds; then fuse_attr:
ino, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, blksize,
flags."""
OPEN_OUT = Struct("=QIi")
"""fh, open_flags, backing_id."""
KEEP_CACHE = 1 << 1
CACHE_DIR = 1 << 3
STATFS_OUT = Struct("=QQQQQIIII24x")
"""blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, padding."""
DIRENT = Struct("=QQII")
"""ino, off, namelen, type; then the name, and zeros up to a multiple of 8 bytes."""

# Notifications: their code is where a reply has the error, and `unique` is 0.
NOTIFY_INVAL_INODE = 2
NOTIFY_INVAL_ENTRY = 3
INVAL_INODE_OUT = Struct("=Qqq")
"""ino, off (negative: attributes alone), len (0: to the end)."""
INVAL_ENTRY_OUT = Struct("=QII")
"""parent, namelen, flags; then the name and a zero."""


def attr_out(entry: bytes) -> bytes:
    """fuse_attr_out with the attributes, and their validity in whole seconds, of an entry."""
    return entry[24:32] + b"\0\0\0\0\0\0\0\0" + entry[40:]
