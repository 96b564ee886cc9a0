"""A store of version 1, made by the program of then (version_1/make.py), in the hands of
this one."""

from __future__ import annotations

import gzip
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from cowfs.errors import DamagedRecordError, StoreDamagedError, UpgradeFailedError
from cowfs.format import records
from cowfs.service.repair import repair
from cowfs.service.verify import Report, verify
from cowfs.service.workspace import reading
from cowfs.store import steps, upgrade
from cowfs.store.compaction import compact
from cowfs.store.env import ADDED, TABLES, open_store
from cowfs.store.files import NEW
from cowfs.store.rewriting import silent
from cowfs.store.snapshot import Reader
from cowfs.store.upgrade import KEPT, drop_kept, kept_bytes
from tests.crash.forks import Child
from tests.crash.forks import Report as Tell
from tests.store.version_1.states import states

HERE = Path(__file__).parent / "version_1"
UPGRADE_STEPS = [step for step in steps.STEPS if step.startswith("upgrade.")]
Rows = dict[str, dict[bytes, bytes]]

pytestmark = pytest.mark.skipif(
    mmap.PAGESIZE != 4096 or sys.byteorder != "little",
    reason="LMDB's files are those of machines with pages of 4096 bytes, low byte first",
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The store of version 1."""
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(gzip.decompress((HERE / "store.gz").read_bytes()))
    return path


def told() -> dict[str, str]:
    """What its states showed to the program that wrote it."""
    found: dict[str, str] = json.loads((HERE / "states.json").read_text(encoding="utf-8"))
    return found


def rows(path: Path) -> Rows:
    """All records but the format's, as they are read."""
    store = open_store(path, writable=False)
    try:
        with Reader(store) as reader:
            found = {table: dict(reader.scan(table)) for table in TABLES if table not in ADDED}
    finally:
        store.close()
    return without_new(found)


def without_new(found: Rows) -> Rows:
    """Without what an upgrade changes and adds."""
    added = [key for key in found["meta"] if key == b"format" or key.startswith(b"sums")]
    for key in added:
        del found["meta"][key]
    return found


def shown(path: Path) -> dict[str, str]:
    store = open_store(path, writable=False)
    try:
        with Reader(store) as reader:
            return states(reader)
    finally:
        store.close()


def format_of(path: Path) -> records.FormatRecord:
    store = open_store(path, writable=False)
    try:
        assert store.version == store.format().version
        return store.format()
    finally:
        store.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def upgraded(path: Path) -> None:
    open_store(path, writable=True).close()


def examined(path: Path) -> Report:
    with reading(path, None, damaged=True) as workspace:
        return verify(workspace)


def test_it_has_records_of_all_kinds(old: Path) -> None:
    """Else the tests below would test little."""
    found = rows(old)
    assert [table for table in found if not found[table]] == []
    assert {len(value) for value in found["extent"].values()} == {0, 1, 32}
    assert any(not value for value in found["inode"].values())
    assert {value[0] for value in found["block"].values()} == {0, 1, 2}
    assert any(key.startswith(b"lost\0") for key in found["meta"])


def test_it_is_read_as_it_is(old: Path) -> None:
    before = digest(old / "data.mdb")
    assert format_of(old).version == 1
    assert shown(old) == told()
    assert examined(old).problems == []
    assert digest(old / "data.mdb") == before


def test_a_compaction_leaves_its_version(old: Path) -> None:
    """It makes no parts of segments then, and condenses nothing."""
    compact(old, silent)
    assert (format_of(old).version, format_of(old).incompatible) == (1, 0)
    assert shown(old) == told()
    upgraded(old)
    compact(old, silent)
    assert format_of(old).version == 2
    assert shown(old) == told()
    assert examined(old).problems == []


def test_it_is_upgraded_before_it_is_written(old: Path) -> None:
    before, record = rows(old), format_of(old)
    first = digest(old / "data.mdb")
    upgraded(old)
    after = format_of(old)
    assert (after.version, after.uuid, after.created) == (2, record.uuid, record.created)
    assert rows(old) == before
    assert shown(old) == told()
    assert examined(old).problems == []
    assert digest(old / KEPT) == first
    assert not [name for name in os.listdir(old) if name.startswith(NEW)]


def test_every_value_has_its_checksum_then(old: Path) -> None:
    upgraded(old)
    store = open_store(old, writable=False)
    with store.reading() as txn:
        for table in store.tables.values():
            with txn.cursor(db=table) as cursor:
                assert cursor.set_range(b"") or table.name in ADDED
                stored = list(cursor.following())
            sizes = {
                len(value) - len(cursor.open(key, value))
                for key, value in stored
                if key != b"format"
            }
            assert sizes == {0 if table.name == "block" else 4} or not stored
    store.close()


def test_the_copy_stays_until_it_is_dropped(old: Path) -> None:
    assert kept_bytes(old) == 0
    upgraded(old)
    upgraded(old)
    assert kept_bytes(old) > 0
    assert drop_kept(old)
    assert not drop_kept(old)
    assert kept_bytes(old) == 0
    assert shown(old) == told()


def test_the_copy_takes_its_place_again(old: Path) -> None:
    upgraded(old)
    os.replace(old / KEPT, old / "data.mdb")
    assert format_of(old).version == 1
    upgraded(old)
    assert shown(old) == told()


def test_another_copy_is_not_written_over(old: Path) -> None:
    (old / KEPT).write_bytes(b"of another upgrade")
    before = digest(old / "data.mdb")
    with pytest.raises(UpgradeFailedError, match=r"move .*version-1 away"):
        open_store(old, writable=True)
    assert (old / KEPT).read_bytes() == b"of another upgrade"
    assert digest(old / "data.mdb") == before
    assert not (old / NEW).exists()


@pytest.mark.parametrize("step", UPGRADE_STEPS)
def test_killed_at_a_step(old: Path, step: str) -> None:
    """The one store or the other, whole; and the next one who opens it goes on."""
    before = rows(old)

    def work(report: Tell) -> None:
        steps.arm(step)
        open_store(old, writable=True)
        report("survived")

    child = Child(work)
    assert list(child.reports()) == []
    assert child.wait()
    found = format_of(old)
    assert found.version == (2 if step in ("upgrade.named", "upgrade.done") else 1)
    assert rows(old) == before
    assert shown(old) == told()
    upgraded(old)
    assert format_of(old).version == 2
    assert rows(old) == before
    assert examined(old).problems == []
    assert kept_bytes(old) > 0


def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        values = list(real(path))
        values[4] = 10  # f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "statvfs", full)


def refuse(*_: object) -> None:
    raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL: Environment mapsize limit reached")


def differ(*_: object) -> bool:
    raise DamagedRecordError(what="inode record 1", detail="its checksum is wrong")


@pytest.mark.parametrize(
    ("harm", "detail"),
    [
        (without_room, "MiB of room"),
        (lambda patch: patch.setattr(upgrade, "_append", refuse), "MDB_MAP_FULL"),
        (lambda patch: patch.setattr(upgrade, "_compare", differ), "its checksum is wrong"),
        (lambda patch: patch.setattr(upgrade, "_append", lambda *_: None), "is not the same"),
        (lambda patch: patch.setattr(os, "link", lambda *_: os.stat("/nowhere")), "No such file"),
    ],
    ids=["no room", "the disk fills", "unsound", "incomplete", "no links"],
)
def test_what_fails_leaves_the_old_store(
    old: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[pytest.MonkeyPatch], None],
    detail: str,
) -> None:
    before, names = digest(old / "data.mdb"), sorted(os.listdir(old))
    with monkeypatch.context() as patch:
        harm(patch)
        with pytest.raises(UpgradeFailedError, match=detail):
            open_store(old, writable=True)
    assert digest(old / "data.mdb") == before
    assert sorted(set(os.listdir(old)) - {"lock.mdb", "owner"}) == names
    upgraded(old)
    assert shown(old) == told()


def test_damaged_pages_are_not_copied(old: Path) -> None:
    with open(old / "data.mdb", "r+b") as file:
        file.seek(4 * 4096)
        file.write(bytes(8 * 4096))
    before = digest(old / "data.mdb")
    with pytest.raises(StoreDamagedError, match="page"):
        open_store(old, writable=True)
    assert digest(old / "data.mdb") == before
    assert format_of(old).version == 1


def test_who_reads_the_old_store_goes_on(old: Path) -> None:
    reader, tell = os.pipe(), os.pipe()

    def work(report: Tell) -> None:
        store = open_store(old, writable=False)
        with Reader(store) as opened:
            report("opened")
            os.read(reader[0], 1)
            report(states(opened))
        with Reader(store) as opened:
            report(states(opened))

    child = Child(work)
    reports = child.reports()
    assert next(reports) == ["opened"]
    upgraded(old)
    assert shown(old) == told()
    os.write(reader[1], b"x")
    assert next(reports) == [told()]
    assert next(reports) == [told()]
    assert list(reports) == []
    assert not child.wait()
    for end in (*reader, *tell):
        os.close(end)


def test_a_plan_for_a_repair_does_not_upgrade(old: Path) -> None:
    before = digest(old / "data.mdb")
    repair(old, None, dry_run=True, progress=lambda *_: None)
    assert digest(old / "data.mdb") == before
    repair(old, None, dry_run=False, progress=lambda *_: None)
    assert format_of(old).version == 2
    assert shown(old) == told()


def test_a_damaged_format_record_is_no_obstacle_to_a_repair(old: Path) -> None:
    env = lmdb.open(str(old), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.put(b"format", b"garbage", db=env.open_db(b"meta", txn=txn, create=False))
    env.close()
    with pytest.raises(StoreDamagedError):
        open_store(old, writable=True)
    before = rows_damaged(old)
    assert repair(old, None, dry_run=False, progress=lambda *_: None).after.problems == []
    assert format_of(old).version == 2
    assert rows(old) == before


def rows_damaged(path: Path) -> Rows:
    store = open_store(path, writable=False, damaged=True)
    try:
        assert store.version == 1
        with Reader(store) as reader:
            found = {table: dict(reader.scan(table)) for table in TABLES if table not in ADDED}
    finally:
        store.close()
    return without_new(found)
