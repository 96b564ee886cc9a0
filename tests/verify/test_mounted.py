"""What is mounted equals what is stored, with a real mount."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import pytest

from cowfs.client.rpc import Client
from cowfs.format import codec, keys, records
from cowfs.format.checksum import of_table
from cowfs.format.version import VERSION
from cowfs.service.verify import Report, mounted, verify
from cowfs.service.workspace import ReadOnly, reading
from cowfs.store.env import TABLES
from cowfs.store.snapshot import Reader
from tests.support.mounting import Mounted
from tests.verify.sample import count_again, noise

BLOCK = 65536


@dataclass(slots=True)
class Checker:
    """Verifies a live mount as the command does."""

    mount: Mounted
    client: Client
    refreshes: int = 0
    before_refresh: Callable[[], None] = lambda: None

    def run(self, *, refresh: bool = True, **options: Any) -> Report:
        with contextlib.ExitStack() as stack:
            base = self._flush(stack)
            workspace = stack.enter_context(reading(self.mount.store, base))

            def again() -> ReadOnly:
                self.refreshes += 1
                self.before_refresh()
                descriptor = self._flush(stack)
                reader = stack.enter_context(Reader(workspace.store))
                return ReadOnly(workspace.store, reader, descriptor)

            return verify(
                workspace,
                mountpoint=str(self.mount.mountpoint),
                refresh=again if refresh else None,
                **options,
            )

    def _flush(self, stack: contextlib.ExitStack) -> int:
        self.client.call("flush")
        descriptor = self.client.take_fd()
        assert descriptor is not None
        stack.callback(os.close, descriptor)
        return descriptor

    @contextlib.contextmanager
    def store(self) -> Iterator[Any]:
        """put(table, key, value) on the store, behind the daemon's back."""
        self.client.call("flush")
        env = lmdb.open(str(self.mount.store), max_dbs=len(TABLES), map_size=1 << 30)
        try:
            tables = {name: env.open_db(name.encode(), create=False) for name in TABLES}
            with env.begin(write=True) as txn:

                def put(table: str, key: bytes, value: bytes) -> None:
                    txn.put(key, of_table(table, VERSION).seal(key, value), db=tables[table])

                yield put
                count_again(txn, tables)
        finally:
            env.close()

    def change_inode(self, path: Path, **fields: Any) -> None:
        """Store another version of an inode than the daemon has in memory."""
        ino = os.lstat(path).st_ino
        self.client.call("flush")
        with reading(self.mount.store, None) as workspace:
            lineage = workspace.point("@").lineage
            record = workspace.snapshot(workspace.point("@")).inode(ino)
            assert record is not None
        with self.store() as put:
            value = records.pack_inode(*record._replace(**fields))
            put("inode", keys.inode_key(ino, lineage.head), value)
            put("change", keys.change_inode_key(lineage.head, ino), b"")


@pytest.fixture
def checker(
    mounted: Callable[..., AbstractContextManager[Mounted]], base: Path
) -> Iterator[Checker]:
    (base / "docs" / "deep" / "deeper").mkdir(parents=True)
    (base / "docs" / "readme").write_bytes(noise(1, 100_000))
    (base / "docs" / "deep" / "deeper" / "file").write_bytes(b"deep")
    (base / "plain").write_bytes(b"plain")
    os.link(base / "plain", base / "linked")
    os.symlink("docs", base / "link")
    with mounted(base, check=False) as mount, mount.client() as client:
        yield Checker(mount, client)


def problems(report: Report) -> list[tuple[str, str]]:
    return [(problem.check, *problem.paths) for problem in report.problems]  # type: ignore[misc]


def test_a_sound_mount_has_no_problems(checker: Checker) -> None:
    top = checker.mount.mountpoint
    (top / "new").write_bytes(noise(2, 200_000))
    with open(top / "docs" / "readme", "r+b") as file:
        file.seek(70_000)
        file.write(b"changed")
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 20)
        file.seek(300_000)
        file.write(b"middle")
    os.setxattr(top / "new", "user.a", b"1")
    os.mkfifo(top / "fifo")
    report = checker.run()
    assert problems(report) == []
    assert report.checked["mount inodes"] == inodes_below(top) == 12
    assert report.checked["mount directories"] == 4
    assert report.checked["mount blocks"] >= 4 + 1 + 16


def test_directories_that_nobody_looked_into_are_compared(checker: Checker) -> None:
    report = checker.run()
    assert problems(report) == []
    assert report.checked["mount directories"] == 4
    assert report.checked["mount inodes"] == inodes_below(checker.mount.mountpoint)


def test_all_content_is_read_when_thorough(checker: Checker) -> None:
    quick, thorough = checker.run(), checker.run(thorough=True)
    assert problems(quick) == problems(thorough) == []
    assert quick.checked["mount blocks"] == 0
    assert thorough.checked["mount blocks"] == 2 + 1 + 1 + 1


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"mode": stat.S_IFREG | 0o600}, "mode 0o100600 stored, 0o100644 mounted"),
        ({"uid": 77}, f"uid 77 stored, {os.geteuid()} mounted"),
        ({"gid": 77}, f"gid 77 stored, {os.getegid()} mounted"),
        ({"mtime": 12345}, "mtime 12345 stored"),
        ({"nlink": 2, "flags": 1}, "nlink 2 stored, 1 mounted"),
        ({"size": 9}, "size 9 stored, 5 mounted"),
    ],
)
def test_attributes_that_differ(checker: Checker, fields: dict[str, int], detail: str) -> None:
    path = checker.mount.mountpoint / "file"
    path.write_bytes(b"bytes")
    os.chmod(path, 0o644)
    os.chown(path, os.geteuid(), os.getegid())
    checker.change_inode(path, **fields)
    report = checker.run()
    assert problems(report)[0] == ("mount-attributes", "file")
    assert detail in report.problems[0].detail
    assert report.problems[0].checkpoints == ("@",)
    assert checker.refreshes == 1


def test_a_target_that_differs(checker: Checker) -> None:
    path = checker.mount.mountpoint / "symlink"
    os.symlink("here", path)
    os.readlink(path)
    checker.change_inode(path, target=b"gone")
    assert problems(checker.run()) == [("mount-target", "symlink")]


def test_an_extended_attribute_that_differs(checker: Checker) -> None:
    path = checker.mount.mountpoint / "file"
    path.touch()
    os.setxattr(path, "user.a", b"1")
    ino = path.stat().st_ino
    head = checker.client.call("flush")["head_epoch"]
    with checker.store() as put:
        put("xattr", keys.xattr_key(ino, b"user.a", head), b"\x012")
    assert problems(checker.run()) == [("mount-xattr", "file")]


def test_entries_that_differ(checker: Checker) -> None:
    path = checker.mount.mountpoint / "file"
    path.touch()
    ino, top = path.stat().st_ino, checker.mount.mountpoint.stat().st_ino
    head = checker.client.call("flush")["head_epoch"]
    with checker.store() as put:
        put("dirent", keys.dirent_key(top, b"other", head), records.pack_dirent(ino, 8))
        put("link", keys.link_key(ino, top, b"other", head), b"\x08")
        put("change", keys.change_dirent_key(head, top, b"other"), b"")
    found = problems(checker.run())
    assert ("mount-entries", ".") in found
    assert ("mount-attributes", "other") in found  # it cannot be looked at


def test_content_that_differs(checker: Checker) -> None:
    path = checker.mount.mountpoint / "file"
    path.write_bytes(noise(3, 2 * BLOCK))
    ino = path.stat().st_ino
    head = checker.client.call("flush")["head_epoch"]
    other = noise(4, BLOCK)
    with checker.store() as put:
        put("block", codec.block_hash(other), codec.encode_block(other))
        put("extent", keys.extent_key(ino, 1, head), codec.block_hash(other))
    report = checker.run()
    assert problems(report) == [("mount-content", "file")]
    assert report.problems[0].detail == "bytes from 65536 on differ"


def test_what_changes_meanwhile_is_not_reported(checker: Checker) -> None:
    """A writer between the first look and the second."""
    top = checker.mount.mountpoint
    path = top / "busy"
    path.write_bytes(b"first")
    with contextlib.ExitStack() as stack:
        base = checker._flush(stack)
        workspace = stack.enter_context(reading(checker.mount.store, base))
        path.write_bytes(b"second, and longer")
        (top / "appeared").touch()
        writes = iter(range(100))

        def again() -> ReadOnly:
            path.write_bytes(b"%d" % next(writes) * 50)
            (top / f"appeared{next(writes)}").touch()
            descriptor = checker._flush(stack)
            reader = stack.enter_context(Reader(workspace.store))
            return ReadOnly(workspace.store, reader, descriptor)

        report = verify(workspace, mountpoint=str(top), refresh=again)
    assert problems(report) == []
    assert report.checked["mount busy"] > 0


def changing_listings(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None], after: Callable[[], None]
) -> list[bytes]:
    """The mount changes before and after the n-th listing of a verification. Returns the listed."""
    listing = mounted.Comparison._listing
    listed: list[bytes] = []

    def busy(self: mounted.Comparison, path: bytes) -> list[tuple[bytes, bool]]:
        before(len(listed))
        listed.append(path)
        found = listing(self, path)
        after()
        return found

    monkeypatch.setattr(mounted.Comparison, "_listing", busy)
    return listed


def test_a_name_that_comes_and_goes_is_not_reported(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editor's lock does: it is there at each look, and never when something is stored."""
    lock = checker.mount.mountpoint / "lock"
    listed = changing_listings(monkeypatch, lambda n: lock.touch(), lock.unlink)
    report = checker.run()
    assert problems(report) == []
    assert report.checked["mount busy"] > 0
    assert len(listed) > 2


@pytest.mark.parametrize("at", range(1, 7))
def test_a_name_that_comes_before_the_comparison_is_not_reported(
    checker: Checker, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Between the look that tells whether anything changed and the comparison, for one."""
    top = checker.mount.mountpoint

    def come(look: int) -> None:
        if look in (0, at):
            (top / f"new {look}").touch()

    listed = changing_listings(monkeypatch, come, lambda: None)
    assert problems(checker.run()) == []
    assert len(listed) > 2


def test_a_change_before_the_first_look_is_settled_by_a_refresh(checker: Checker) -> None:
    top = checker.mount.mountpoint
    os.listdir(top)  # so that it was listed at the first look, and `later` is not in it
    with contextlib.ExitStack() as stack:
        base = checker._flush(stack)
        workspace = stack.enter_context(reading(checker.mount.store, base))
        (top / "later").write_bytes(b"later")

        def again() -> ReadOnly:
            descriptor = checker._flush(stack)
            reader = stack.enter_context(Reader(workspace.store))
            return ReadOnly(workspace.store, reader, descriptor)

        report = verify(workspace, mountpoint=str(top), refresh=again)
    assert problems(report) == []
    assert report.checked["mount busy"] == 0
    assert report.checked["mount inodes"] == inodes_below(top) - 1  # `later` was stored later


def inodes_below(top: Path) -> int:
    return 1 + sum(len(files) + len(directories) for _, directories, files in os.walk(top))


def test_the_mount_can_be_another_place(
    mounted: Callable[..., AbstractContextManager[Mounted]], base: Path, tmp_path: Path
) -> None:
    (base / "file").write_bytes(b"file")
    elsewhere = tmp_path / "mnt"
    elsewhere.mkdir()
    with mounted(base, None, elsewhere) as mount, mount.client() as client:
        (elsewhere / "made").write_bytes(b"made")
        assert problems(Checker(mount, client).run()) == []


def test_a_damaged_record_does_not_end_the_comparison(checker: Checker) -> None:
    top = checker.mount.mountpoint
    (top / "damaged").touch()
    (top / "different").touch()
    ino = (top / "damaged").stat().st_ino
    head = checker.client.call("flush")["head_epoch"]
    checker.change_inode(top / "different", uid=77)
    with checker.store() as put:
        put("inode", keys.inode_key(ino, head), b"damage")
    found = problems(checker.run())
    assert ("record", "damaged") in found
    assert ("mount-attributes", "different") in found
