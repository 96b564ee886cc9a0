"""The base directory's device has another number than before, as after a boot: nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cowfs.format import keys, records
from cowfs.store.env import open_store
from cowfs.volume.devices import follow_device
from cowfs.volume.importing import ROOT_KEY
from tests.support.volumes import Rig

OpenRig = Callable[[], Rig]
_OTHER = 0xFFF01
"""A number that no device here has."""


def fill(base: Path) -> None:
    (base / "sub" / "deep").mkdir(parents=True)
    (base / "top.txt").write_text("top")
    (base / "sub" / "file.txt").write_bytes(b"content that only the base has" * 5000)
    (base / "sub" / "linked").write_text("two names")
    os.link(base / "sub" / "linked", base / "sub" / "deep" / "other name")
    os.symlink("top.txt", base / "link")


def renumber(rig: Rig, number: int) -> None:
    """Make the records those of a life in which the device had this number."""
    rig.close()
    now = os.stat(rig.base or "/").st_dev
    store = open_store(rig.store, writable=True)
    with store.begin(write=True) as txn:
        for table in ("base", "hardlink", "meta"):
            with txn.cursor(store.tables[table]) as cursor:
                cursor.set_range(b"")
                rows = [(key, cursor.open(key, stored)) for key, stored in cursor.following()]
            for key, value in rows:
                if table == "hardlink":
                    assert key[:8] == keys.pack_id(now)
                    txn.delete(key, db=store.tables[table])
                    txn.put(keys.pack_id(number) + key[8:], value, db=store.tables[table])
                elif table == "base" or key == ROOT_KEY:
                    record = records.unpack_base(value)._replace(dev=number)
                    txn.put(key, records.pack_base(record), db=store.tables[table])
    store.close()
    rig.start()


def test_the_same_files_under_another_number(open_rig: OpenRig, base: Path) -> None:
    fill(base)
    rig = open_rig()
    tree = rig.tree()
    rig.checkpoint()
    rig.write(b"sub/file.txt", b"changed", 10)
    changed = rig.tree()
    renumber(rig, _OTHER)
    before = rig.record_counts()
    assert follow_device(rig.volume)
    assert rig.tree() == changed
    assert rig.problems() == []
    assert rig.record_counts() == before
    assert tree.keys() == changed.keys()
    rig.reopen()
    assert not follow_device(rig.volume)
    assert rig.tree() == changed


def test_a_name_of_a_linked_file_that_nobody_saw_yet(open_rig: OpenRig, base: Path) -> None:
    """Hard links are known by device and inode number."""
    fill(base)
    rig = open_rig()
    first = rig.at(b"sub/linked").ino
    renumber(rig, _OTHER)
    assert follow_device(rig.volume)
    assert rig.at(b"sub/deep/other name").ino == first


def test_what_did_change_meanwhile_is_still_found(open_rig: OpenRig, base: Path) -> None:
    fill(base)
    rig = open_rig()
    rig.tree()
    renumber(rig, _OTHER)
    rig.close()
    (base / "sub" / "file.txt").write_text("edited outside")
    rig.start()
    assert follow_device(rig.volume)
    assert rig.read(b"sub/file.txt") == b"edited outside"
    assert rig.read(b"top.txt") == b"top"
    assert ("external", "sub/file.txt") in rig.problems()
    assert not [path for _, path in rig.problems() if path not in ("sub/file.txt", "sub")]


def test_another_directory_proves_nothing(open_rig: OpenRig, base: Path) -> None:
    """Where no file is the same the device is another one, and all is adopted as changed."""
    fill(base)
    rig = open_rig()
    rig.tree()
    renumber(rig, _OTHER)
    rig.close()
    for path in sorted(base.iterdir()):
        copy = path.with_name(path.name + ".new")
        if path.is_dir():
            os.utime(path)
        elif not path.is_symlink():
            copy.write_bytes(path.read_bytes())
            os.replace(copy, path)
        else:
            os.unlink(path)
            os.symlink("top.txt", path)
    rig.start()
    assert not follow_device(rig.volume)
