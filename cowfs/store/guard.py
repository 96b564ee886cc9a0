"""Whether LMDB may look at a store's file.

LMDB trusts its file: a page whose header or nodes are wrong can end the process that reads or
writes it, or worse, if somebody made the file for that. A page of which even the type is wrong is
refused by LMDB itself. So before a file is opened that may hold anything (another one than was
opened here last, a copy for instance), or that is small enough, its pages are looked at
(store/pages.py), and it is refused when there is one that LMDB would stumble over.

Threading: only reads.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from cowfs.errors import StoreDamagedError
from cowfs.store.pages import FREE_LIST, MAIN, Damage, DamagedFileError, PageCheck

_SMALL_BYTES = 16 << 20
"""Files up to this size are looked at each time: at most about a tenth of a second."""
_TYPES = 0x0F
_FLAGS_AT = 10
_COUNTS = "it should have"
"""Counts that are wrong do no harm."""
_VALUE = "the value of node"


def file_number(path: Path) -> int:
    """By which a store's data file is known again; 0 when there is none."""
    try:
        return os.stat(path / "data.mdb").st_ino
    except OSError:
        return 0


def must_be_safe(path: Path, known: int) -> None:
    """Raises StoreDamagedError for a file that LMDB had better not open.

    known: the number of the file that was opened here last, 0 for none.
    """
    data = path / "data.mdb"
    try:
        st = os.stat(data)
    except OSError:
        return  # what there is to say is said by who opens it
    if st.st_ino == known and st.st_size > _SMALL_BYTES:
        return
    try:
        found = [damage for damage in PageCheck(data).run() if _is_harmful(data, damage)]
        if st.st_ino == known:
            # Nobody made it: the file of a long value is the only one that suffers.
            found = [damage for damage in found if not damage.detail.startswith(_VALUE)]
    except (DamagedFileError, ValueError):
        return  # LMDB opens no file without meta pages
    if found:
        first = found[0]
        detail = f"page {first.page} of its table {first.table}: {first.detail}"
        raise StoreDamagedError(path=str(path), detail=detail)


def _is_harmful(data: Path, damage: Damage) -> bool:
    """Whether LMDB would go on with a damaged page, and not find its type or number wrong."""
    at = damage.page * mmap.PAGESIZE
    if damage.detail.startswith(_COUNTS):
        return False
    if damage.table in (FREE_LIST, MAIN):
        return True
    if at >= os.stat(data).st_size:
        return False
    with open(data, "rb") as file:
        header = os.pread(file.fileno(), 16, at)
    return bool(int.from_bytes(header[_FLAGS_AT : _FLAGS_AT + 2], "little") & _TYPES)
