"""What an apply has to take into account beside the difference of two states: names of files
outside the base, and modes that would keep the daemon out.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import os
import stat

from cowfs.service.applying import attributes
from cowfs.service.applying.known import Known
from cowfs.service.applying.plan import Plan
from cowfs.service.applying.reach import Reach
from cowfs.service.applying.staging import staged_links
from cowfs.store.snapshot import Snapshot
from cowfs.volume.base import Base


def detach(base: Base, before: Snapshot, after: Snapshot, plan: Plan) -> None:
    """A file that has a name outside, and is to get other attributes, is replaced by one of its
    own, as it is when its content changes: what lies outside is not ours to change. An interrupted
    apply may have left names in the staging directory, which are ours as well."""
    reach = Reach(base)
    known = Known(reach, before, after, plan)
    for ino in plan.touched - plan.created - plan.rewritten:
        old, new = before.inode(ino), after.inode(ino)
        if old is None or new is None or stat.S_ISDIR(new.mode):
            continue
        if _is_shared(base, reach, known, after, ino):
            plan.rewritten.add(ino)
            plan.detached.add(ino)
            if stat.S_ISREG(new.mode):
                plan.seal_first(before, {old.content, new.content})


def _is_shared(base: Base, reach: Reach, known: Known, after: Snapshot, ino: int) -> bool:
    record = after.inode(ino)
    for path in known.paths(ino):
        try:
            with reach.thing(path) as (fd, st):
                if stat.S_ISDIR(st.st_mode) or st.st_nlink == 1 or not known.is_it(ino, st):
                    continue
                if st.st_nlink > known.names_in_base(ino, st) + staged_links(base, st):
                    assert record is not None
                    return not attributes.are_set(fd, st, record, after.xattrs(ino))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return False


def closed_to_us(after: Snapshot, plan: Plan) -> tuple[set[int], list[bytes]]:
    """(contents of files, paths of directories) that get a mode which keeps their owner, who is the
    daemon's user, from reading them: what only the base has would be out of reach."""
    user = os.geteuid()
    contents: set[int] = set()
    directories: list[bytes] = []
    if user == 0:
        return contents, directories
    for ino in plan.touched:
        record = after.inode(ino)
        if record is None:
            continue
        if record.uid != user:
            if stat.S_ISREG(record.mode) and record.nlink > 1 and ino in plan.moved:
                contents.add(record.content)  # a further name of it may have to be another file
            continue
        if stat.S_ISREG(record.mode) and not record.mode & stat.S_IRUSR:
            contents.add(record.content)
        elif stat.S_ISDIR(record.mode) and record.mode & 0o500 != 0o500:
            path = after.directory_path(ino)
            if path is not None:
                directories.append(path)
    return contents, directories
