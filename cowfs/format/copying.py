"""Copies of conversations that are on their way: records in `meta` (docs/format.md, "Meta").

Threading: pure functions and immutable records.
"""

from __future__ import annotations

import posixpath
import re

import msgspec

COPYING = b"copying\0"
"""In the table `meta`: the keys begin so, the id of the copy's session follows."""

PREPARED = "prepared"
"""Its files may be there under temporary names. They have to go, unless this becomes COMMITTED."""
COMMITTED = "committed"
"""Its files are on stable storage under temporary names, and have to get their own."""
STATES = (PREPARED, COMMITTED)

_TEMPORARY = re.compile(rb"\.cowfs-[0-9a-f]{8}-[0-9]{1,9}")
"""What has another name is never removed: somebody may have made the store."""


class CopyingRecord(msgspec.Struct, array_like=True, frozen=True):
    """state: see STATES. files: (temporary path, path) of each, absolute. directories: those that
    were made for them, outermost first."""

    state: str
    files: tuple[tuple[bytes, bytes], ...]
    directories: tuple[bytes, ...] = ()


def temporary_name(token: str, number: int) -> bytes:
    """The name of a file that waits for its own. token: 8 hexadecimal digits."""
    return b".cowfs-%s-%d" % (token.encode(), number)


def copying_key(session: str) -> bytes:
    """Key in `meta`, by the id of the copy's session."""
    return COPYING + session.encode()


def copying_session(key: bytes) -> str:
    """The session of a key."""
    return key[len(COPYING) :].decode("utf-8", "backslashreplace")


def fault(record: CopyingRecord) -> str:
    """What cannot be so in a record, "" when all can."""
    if record.state not in STATES:
        return f"its state is {record.state!r}"
    if not record.files:
        return "it has no files"
    for temporary, path in record.files:
        if not (_is_path(temporary) and _is_path(path)) or temporary == path:
            return "it has a file that is no path"
        directory, name = posixpath.split(temporary)
        if directory != posixpath.dirname(path):
            return "it has a file that would be moved to another directory"
        if not _TEMPORARY.fullmatch(name):
            return "it has a file whose name is no temporary one"
    for directory in record.directories:
        if not _is_path(directory) or not any(
            path.startswith(directory + b"/") for _, path in record.files
        ):
            return "it has a directory that none of the files is in"
    return ""


def _is_path(path: bytes) -> bool:
    return path.startswith(b"/") and b"\0" not in path and posixpath.normpath(path) == path
