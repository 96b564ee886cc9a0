"""A store whose tables have branch pages, and what its pages are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cowfs.errors import DamagedRecordError
from cowfs.format.audit import MADE
from cowfs.store.pages import PageCheck
from cowfs.volume.posix import PosixError
from tests.support.volumes import START, Facts, Rig
from tests.verify.sample import Sample, Talk, noise, note, processes

PAGE = 4096
_DIRECTORIES, _FILES, _IMPORTED = 8, 60, 40
_BIG = 150_000

Tree = dict[bytes, Facts | int]
"""What each path shows; an errno where it cannot be read."""


def build_large(directory: Path) -> Sample:
    """Make it in an empty directory: 40 files of the base and 480 others in 8 directories, of which
    some have two versions, several blocks, attributes, or two names; and a conversation of 120
    pieces. The last two commits change little, so that both snapshots share nearly all pages."""
    base = directory / "base"
    (base / "docs").mkdir(parents=True)
    for number in range(_IMPORTED):
        (base / "docs" / f"page{number}").write_bytes(noise(number, 200))
    rig = Rig(directory / "store", base)
    rig.tree()
    for at in range(_DIRECTORIES):
        rig.mkdir(b"d%d" % at)
        for number in range(_FILES):
            path = b"d%d/file%d" % (at, number)
            rig.create(path, noise(at * 100 + number, _BIG if number % 20 == 7 else 100))
            if number % 10 == 3:
                rig.setxattr(path, b"user.number", b"%d" % number)
            if number % 10 == 5:
                rig.link(path, b"d%d/link%d" % (at, number))
    who = processes(rig, b"make")
    note(rig, who, MADE, b"d0/file0")
    talk = Talk(rig, directory / "agent")
    for number in range(120):
        talk.says("main", noise(number, 40).hex().encode() + b"\n")
        talk.keep()
    talk.says("sub", b'{"isSidechain":true}\n')
    talk.sub_agent()
    one = talk.checkpoint(label="one")
    for at in range(_DIRECTORIES):
        rig.write(b"d%d/file1" % at, b"changed")
        rig.unlink(b"d%d/file2" % at)
        rig.rename(b"d%d/file3" % at, b"d%d/moved" % at)
    two = talk.checkpoint(label="two")
    for at in range(2):
        rig.write(b"d0/file%d" % (10 + at), b"later %d" % at)
        rig.volume.sync()
    names = {START: "start", one.id: "one", two.id: "two", "@": "now"}
    rig.finish(check=False)
    return Sample(directory / "store", base, {}, names)


def tree_of(sample: Sample, selector: str = "") -> Tree:
    """What a state shows."""
    rig = Rig(sample.store, sample.base)
    try:
        if selector:
            rig.restore(selector)
        found: Tree = {}
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            try:
                found[path] = rig.facts(rig.at(path))
                names = rig.ls(path) if rig.at(path).is_dir else []
            except PosixError as error:
                found[path] = error.errno
            except DamagedRecordError as error:
                raise AssertionError(f"{path!r}: {error}") from None
            else:
                waiting += [path + b"/" + name if path else name for name in names]
        return found
    finally:
        rig.finish(check=False)


@dataclass(frozen=True, slots=True)
class Page:
    """One page. kind: "branch", "leaf", "overflow" (the first of a long value) or "more"."""

    table: str
    kind: str
    number: int


class _Pages(PageCheck):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.found: list[Page] = []

    def _claim(self, name: str, page: int, count: int = 1) -> str:
        fault = super()._claim(name, page, count)
        flags = int.from_bytes(self._data[page * PAGE + 10 : page * PAGE + 12], "little")
        kind = {1: "branch", 2: "leaf", 4: "overflow"}[flags & 0xF]
        self.found.append(Page(name, kind, page))
        self.found += [Page(name, "more", page + more) for more in range(1, count)]
        return fault


def pages(sample: Sample) -> list[Page]:
    """All pages in use, in the order of their keys."""
    check = _Pages(sample.store / "data.mdb")
    assert list(check.run()) == []
    return check.found


def a_page(sample: Sample, table: str, kind: str) -> int:
    """The middle one of its kind."""
    found = [page.number for page in pages(sample) if (page.table, page.kind) == (table, kind)]
    assert found, f"the sample has no {kind} page of {table}"
    return found[len(found) // 2]


def read(sample: Sample, page: int) -> bytes:
    with open(sample.store / "data.mdb", "rb") as file:
        return os.pread(file.fileno(), PAGE, page * PAGE)


def write(sample: Sample, page: int, data: bytes, offset: int = 0) -> None:
    with open(sample.store / "data.mdb", "r+b") as file:
        os.pwrite(file.fileno(), data, page * PAGE + offset)
