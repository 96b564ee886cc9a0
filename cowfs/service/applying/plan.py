"""What an apply has to change: the difference between two sealed states.

Threading: pure functions and data.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from cowfs.format import keys, records
from cowfs.store.snapshot import Snapshot
from cowfs.tree.changes import differing, same_content

Name = tuple[int, bytes]


@dataclass(slots=True)
class Plan:
    """What has to change. Names are (directory inode, name).

    gone_names, new_names: name to inode. touched: inodes whose attributes or content may differ.
    rewritten: files with other content under a name that stays or moves. created, deleted, moved:
    inodes; removed_directories: those of the deleted. directories: those of the new state whose
    entries change. detached: those of the rewritten that have names outside the base, too, which
    shall not see what changes. resumed: an interrupted run did a part. unsaved: contents to seal
    that cannot be read, or are not what they were: the files that have them stay.
    """

    gone_names: dict[Name, int] = field(default_factory=dict)
    new_names: dict[Name, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    rewritten: set[int] = field(default_factory=set)
    created: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    removed_directories: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    directories: set[int] = field(default_factory=set)
    detached: set[int] = field(default_factory=set)
    resumed: bool = False
    contents_to_seal: list[int] = field(default_factory=list)
    unsaved: set[int] = field(default_factory=set)

    @property
    def empty(self) -> bool:
        return not (self.gone_names or self.new_names or self.touched)

    def resume(self, after: Snapshot) -> None:
        """An interrupted run did a part: every directory in which it may have placed something, or
        that it may have made, gets its attributes and times, whatever is left to be placed."""
        self.resumed = True
        waiting = [name[0] for ino in self.touched | self.rewritten for name in after.links(ino)]
        while waiting:
            directory = waiting.pop()
            if directory not in self.directories and after.inode(directory) is not None:
                self.directories.add(directory)
                waiting += [above for above, _ in after.links(directory)]

    def seal_first(self, snapshot: Snapshot, contents: set[int]) -> None:
        """These contents must be in the store before anything is written."""
        for content in sorted(contents.difference(self.contents_to_seal)):
            value = snapshot.reader.get("origin", keys.pack_id(content))
            if value and records.unpack_origin(value).state == records.ORIGIN_UNLISTED:
                self.contents_to_seal.append(content)


def make_plan(before: Snapshot, after: Snapshot) -> Plan:
    """The difference between what the base shows and what it shall show."""
    plan = Plan()
    touched = differing(before, after)
    for name in touched.names:
        old, new = before.lookup(*name), after.lookup(*name)
        if old is not None:
            plan.gone_names[name] = old[0]
        if new is not None:
            plan.new_names[name] = new[0]
        plan.directories.add(name[0])
    contents = set()
    waiting = list(touched.inodes | {parent for parent, _ in touched.names})
    while waiting:
        directory = waiting.pop()
        for name, known in _adopted_and_gone(before, after, directory):
            plan.gone_names[name] = known.ino
            plan.directories.add(directory)
            record = after.inode(known.ino)
            if record is None and known.kind == records.kind_of(stat.S_IFDIR):
                waiting.append(known.ino)
            if known.content and (record is None or record.content != known.content):
                contents.add(known.content)
    inodes = touched.inodes | set(plan.gone_names.values()) | set(plan.new_names.values())
    for ino in inodes:
        old_record, new_record = before.inode(ino), after.inode(ino)
        if new_record is None:
            plan.deleted.add(ino)
            if old_record is not None and stat.S_ISDIR(old_record.mode):
                plan.removed_directories.add(ino)
        elif old_record is None:
            plan.created.add(ino)
            plan.touched.add(ino)
            if stat.S_ISREG(new_record.mode) and (adopted := _adopted_content(after, ino)):
                plan.rewritten.add(ino)
                if adopted != new_record.content:
                    contents.add(adopted)
        else:
            plan.touched.add(ino)
            if stat.S_ISREG(new_record.mode) and not same_content(before, after, ino):
                plan.rewritten.add(ino)
    plan.moved = set(plan.gone_names.values()) & set(plan.new_names.values())
    plan.directories = {ino for ino in plan.directories if after.inode(ino) is not None}
    # One with names outside the base lives on without any here: its base file goes all the same.
    nameless = {ino for ino in plan.gone_names.values() if not after.links(ino)}
    for ino in plan.rewritten | plan.deleted | plan.created | nameless:
        old_record, new_record = before.inode(ino), after.inode(ino)
        if old_record is not None and stat.S_ISREG(old_record.mode):
            contents.add(old_record.content)
        # Adopted from outside and then written here: the rest of it is still in the base file.
        if new_record is not None and any(True for _ in after.extents(new_record.content)):
            contents.add(new_record.content)
    plan.seal_first(before, contents)
    return plan


def _adopted_and_gone(
    before: Snapshot, after: Snapshot, directory: int
) -> Iterator[tuple[Name, records.BaseRecord]]:
    """What was made outside since the last apply, was adopted, and has lost its name here: neither
    of the two states has it, the base has."""
    for key, value in before.reader.scan("base", keys.pack_id(directory)):
        name, known = (directory, key[8:]), records.unpack_base(value)
        if not known.ino or before.lookup(*name) is not None or b"/" in name[1]:
            continue
        found = after.lookup(*name)
        if found is None or found[0] != known.ino:
            yield name, known


def _adopted_content(after: Snapshot, ino: int) -> int:
    """The content under which a file that was made outside was adopted, 0 when it was not."""
    for name in after.links(ino):
        value = after.reader.get("base", keys.base_key(*name))
        if value and (known := records.unpack_base(value)).ino == ino:
            return known.content
    return 0
