"""Restores in a store with damaged records: what is whole comes back, what is damaged stays out of
the way."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from tests.support.volumes import Rig, errno_of
from tests.verify.sample import Sample, noise


@pytest.fixture
def rig(sample: Sample) -> Iterator[Rig]:
    """Its last version of src/util is damaged (in the present state), and the only one of
    src/main (in `v1` and in the present state)."""
    with sample.open() as hands:
        for path, epoch in (("src/util", 4), ("src/main", 1)):
            hands.store("inode", keys.inode_key(sample.inos[path], epoch), b"garbage")
    rig = Rig(sample.store, sample.base)
    try:
        yield rig
    finally:
        rig.finish(check=False)


def told(sample: Sample) -> set[tuple[str, str, str]]:
    return {(p.check, p.table, p.thing) for p in sample.verify().problems}


@pytest.mark.parametrize("path", [b"src/util", b"src", b""])
def test_a_damaged_file_is_restored(sample: Sample, rig: Rig, path: bytes) -> None:
    """By its name or with what is around it, as often as one likes."""
    assert errno_of(rig.read, b"src/util") == errno.EIO
    rig.restore_paths("v1", [path])
    assert rig.read(b"src/util") == b"util"
    rig.undo()
    assert errno_of(rig.read, b"src/util") == errno.EIO
    rig.restore("v1")
    assert rig.read(b"src/util") == b"util"
    rig.reopen()
    assert rig.read(b"src/util") == b"util"
    before = {("record-checksum", "inode", str(sample.inos[p])) for p in ("src/util", "src/main")}
    rig.close()
    assert told(sample) == before


def test_what_was_damaged_then_stays_as_it_is(sample: Sample, rig: Rig) -> None:
    rig.unlink(b"src/main")
    rig.create(b"src/main", b"anew")
    rig.restore_paths("v1", [b"src"])
    assert rig.read(b"src/main") == b"anew"
    assert rig.read(b"src/util") == b"util"
    assert ("damaged", "src/main") in rig.problems()


def test_a_path_that_is_damaged_itself_is_refused(rig: Rig) -> None:
    """Before anything was changed."""
    head = rig.view.head
    with pytest.raises(DamagedRecordError):
        rig.restore_paths("v1", [b"src/main"])
    assert rig.view.head == head


def test_a_damaged_entry_of_then(sample: Sample) -> None:
    with sample.open() as hands:
        key = keys.dirent_key(sample.inos["src"], b"util", 1)
        hands.store("dirent", key, b"garbage")
    rig = Rig(sample.store, sample.base)
    try:
        rig.write(b"fresh", b"!")
        rig.restore_paths("v1", [b""])
        assert not rig.exists(b"fresh")
        assert rig.read(b"src/main") == noise(2, 100_000)
    finally:
        rig.finish(check=False)
