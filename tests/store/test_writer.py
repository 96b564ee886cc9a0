"""The writer: order, group commit, what removals leave, deltas, and what happens without room."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import lmdb
import pytest

from cowfs.errors import StoreFullError
from cowfs.format import codec, keys, records
from cowfs.store import group as groups
from cowfs.store import writer as writing
from cowfs.store.env import Store
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.store.room import is_full
from cowfs.store.snapshot import Reader, read_block
from cowfs.store.writer import Writer
from cowfs.types import BLOCK_SIZE

LINE = Lineage(((0, 10),))
"""Epochs 0 to 10 in a row; groups are of epoch 5 unless a test says so."""
NOISE = random.Random(1).randbytes(BLOCK_SIZE)
SECONDS = 30


def group(epoch: int = 5, lineage: Lineage | None = None) -> TransactionGroup:
    return TransactionGroup(epoch, lineage or LINE.at(epoch))


def labels(**values: bytes) -> TransactionGroup:
    """A group that writes some plain records."""
    made = group()
    for name, value in values.items():
        made.put("label", name.encode(), value)
    return made


def rows(store: Store, table: str) -> dict[bytes, bytes]:
    with Reader(store) as reader:
        return dict(reader.scan(table))


@pytest.fixture
def commit(writer: Writer) -> Callable[..., None]:
    """Submit groups and wait for them."""

    def run(*groups: TransactionGroup) -> None:
        for item in groups:
            writer.submit(item)
        for item in groups:
            writer.wait(item, SECONDS)

    return run


# -- commits ---------------------------------------------------------------------------------


def test_what_is_waited_for_is_stored(store: Store, commit: Callable[..., None]) -> None:
    commit(labels(a=b"1"))
    assert rows(store, "label") == {b"a": b"1"}


def test_groups_are_committed_in_order(store: Store, commit: Callable[..., None]) -> None:
    commit(*(labels(a=b"%d" % number) for number in range(50)))
    assert rows(store, "label") == {b"a": b"49"}


def test_groups_that_wait_share_a_commit(store: Store, writer: Writer) -> None:
    begun, go_on = threading.Event(), threading.Event()
    begin = store.begin

    def slow(*, write: bool = False) -> Any:
        if write and not begun.is_set():
            begun.set()
            assert go_on.wait(SECONDS)
        return begin(write=write)

    store.begin = slow  # type: ignore[method-assign]
    first, others = labels(a=b"first"), [labels(a=b"%d" % n) for n in range(5)]
    writer.submit(first)
    assert begun.wait(SECONDS)
    for item in others:
        writer.submit(item)
    assert not first.done
    go_on.set()
    writer.wait(others[-1], SECONDS)
    assert all(item.done for item in (first, *others))
    assert writer.commits == 2
    assert rows(store, "label") == {b"a": b"4"}


def test_waiting_can_be_limited(store: Store, writer: Writer) -> None:
    go_on = threading.Event()
    begin = store.begin

    def slow(*, write: bool = False) -> Any:
        if write:
            assert go_on.wait(SECONDS)
        return begin(write=write)

    store.begin = slow  # type: ignore[method-assign]
    item = labels(a=b"1")
    writer.submit(item)
    with pytest.raises(TimeoutError):
        writer.wait(item, 0)
    go_on.set()
    writer.wait(item, SECONDS)


def test_closing_commits_what_is_queued(store: Store, writer: Writer) -> None:
    items = [labels(**{f"n{number}": b""}) for number in range(20)]
    for item in items:
        writer.submit(item)
    writer.close()
    assert len(rows(store, "label")) == 20
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(labels(a=b"1"))


def test_every_commit_is_announced(store: Store) -> None:
    told: list[int] = []
    made = Writer(store, lambda: told.append(made.commits))
    made.submit(labels(a=b"1"))
    made.close()
    assert told == [1]


def test_deletes_of_plain_records(store: Store, commit: Callable[..., None]) -> None:
    commit(labels(a=b"1", b=b"2"))
    item = group()
    item.deletes += [("label", b"a"), ("label", b"never was")]
    commit(item)
    assert rows(store, "label") == {b"b": b"2"}


_READER = """
import sys
from pathlib import Path
from cowfs.store.env import open_store
with open_store(Path(sys.argv[1]), writable=False).reading():
    print("reading", flush=True)
    sys.stdin.read()
"""


def test_a_reader_that_was_killed_keeps_nothing(store: Store, commit: Callable[..., None]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _READER, store.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        commit(labels(one=b"1"))
        assert str(reader.pid) in store.env.readers()
        reader.kill()
        reader.wait()
        assert str(reader.pid) in store.env.readers()
        commit(labels(two=b"2"))
        assert str(reader.pid) not in store.env.readers()


def test_an_empty_group(store: Store, commit: Callable[..., None]) -> None:
    assert group().empty
    assert not labels(a=b"1").empty
    commit(group())


# -- removals --------------------------------------------------------------------------------

NAME = keys.dirent_prefix(1, b"name")
ENTRY = records.pack_dirent(7, 8)


def created(epoch: int) -> TransactionGroup:
    made = group(epoch)
    made.put("dirent", keys.dirent_key(1, b"name", epoch), ENTRY)
    made.put("change", keys.change_dirent_key(epoch, 1, b"name"), b"")
    return made


def removed(epoch: int, lineage: Lineage | None = None) -> TransactionGroup:
    made = group(epoch, lineage)
    made.removals.append(("dirent", NAME, keys.change_dirent_key(epoch, 1, b"name")))
    return made


def test_what_is_created_and_removed_in_one_epoch_leaves_nothing(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(created(5), removed(5))
    assert rows(store, "dirent") == {}
    assert rows(store, "change") == {}


def test_what_an_older_epoch_shows_leaves_a_whiteout(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(created(3), removed(5))
    assert rows(store, "dirent") == {
        keys.dirent_key(1, b"name", 5): records.WHITEOUT,
        keys.dirent_key(1, b"name", 3): ENTRY,
    }
    assert keys.change_dirent_key(5, 1, b"name") in rows(store, "change")


def test_a_second_removal_after_a_whiteout_leaves_nothing(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(created(3), removed(4), created(5), removed(5))
    assert set(rows(store, "dirent")) == {
        keys.dirent_key(1, b"name", 4),
        keys.dirent_key(1, b"name", 3),
    }


def test_what_another_line_wrote_does_not_count(store: Store, commit: Callable[..., None]) -> None:
    """Epoch 3 is not an ancestor of 5: nothing has to be hidden from it."""
    commit(created(3), created(5), removed(5, Lineage(((0, 2), (5, 5)))))
    assert set(rows(store, "dirent")) == {keys.dirent_key(1, b"name", 3)}
    assert set(rows(store, "change")) == {keys.change_dirent_key(3, 1, b"name")}


def test_a_name_that_begins_like_another_is_no_older_version(
    store: Store, commit: Callable[..., None]
) -> None:
    other = group(3)
    other.put("dirent", keys.dirent_key(1, b"name2", 3), ENTRY)
    commit(other, created(5), removed(5))
    assert set(rows(store, "dirent")) == {keys.dirent_key(1, b"name2", 3)}


def test_a_removal_without_a_change_record(store: Store, commit: Callable[..., None]) -> None:
    older = group(3)
    older.put("xattr", keys.xattr_key(7, b"user.a", 3), b"\1")
    item = group(5)
    item.removals.append(("xattr", keys.xattr_prefix(7, b"user.a"), None))
    commit(older, item)
    assert rows(store, "xattr")[keys.xattr_key(7, b"user.a", 5)] == records.WHITEOUT
    assert rows(store, "change") == {}


# -- blocks ----------------------------------------------------------------------------------


def blocks(
    *items: tuple[int, int, bytes | bytearray | None], epoch: int = 5, reference: int = 0
) -> TransactionGroup:
    """(content, block number, data)."""
    made = group(epoch)
    made.blocks += [(content, number, data, reference, epoch) for content, number, data in items]
    return made


def edited(seed: int, data: bytes = NOISE) -> bytes:
    at = seed * 100
    return data[:at] + random.Random(seed).randbytes(50) + data[at + 50 :]


def codecs(store: Store) -> list[int]:
    return sorted(value[0] for value in rows(store, "block").values())


def read(store: Store, content: int, number: int, epoch: int = 5) -> bytes:
    with Reader(store) as reader:
        digest = reader.get("extent", keys.extent_key(content, number, epoch))
        assert digest is not None
        return read_block(reader, digest)


def test_a_block_is_stored_under_its_hash(store: Store, commit: Callable[..., None]) -> None:
    commit(blocks((7, 3, NOISE)))
    assert rows(store, "extent") == {keys.extent_key(7, 3, 5): codec.block_hash(NOISE)}
    assert read(store, 7, 3) == NOISE


def test_equal_blocks_are_stored_once(store: Store, commit: Callable[..., None]) -> None:
    commit(blocks((7, 0, NOISE), (7, 1, NOISE)), blocks((8, 0, bytearray(NOISE))))
    assert len(rows(store, "block")) == 1
    assert len(rows(store, "extent")) == 3


@pytest.mark.parametrize("data", [None, bytes(BLOCK_SIZE), bytes(10), b"", bytearray(100)])
def test_zeros_are_a_hole(
    store: Store, commit: Callable[..., None], data: bytes | bytearray | None
) -> None:
    commit(blocks((7, 0, data)))
    assert rows(store, "extent") == {keys.extent_key(7, 0, 5): records.WHITEOUT}
    assert rows(store, "block") == {}


def test_an_edit_is_a_delta_against_the_version_before(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(blocks((7, 0, NOISE), epoch=3), blocks((7, 0, edited(1))))
    assert codecs(store) == [codec.RAW, codec.PATCH]
    value = rows(store, "block")[codec.block_hash(edited(1))]
    assert codec.delta_reference(value) == codec.block_hash(NOISE)
    assert len(value) < 400
    assert read(store, 7, 0) == edited(1)


def test_deltas_are_one_hop(store: Store, commit: Callable[..., None]) -> None:
    """An edit of an edit refers to the block that stands alone."""
    data = NOISE
    commit(blocks((7, 0, data), epoch=1))
    for epoch in range(2, 8):
        data = edited(epoch, data)
        commit(blocks((7, 0, data), epoch=epoch))
    references = {codec.delta_reference(value) for value in rows(store, "block").values()}
    assert references == {None, codec.block_hash(NOISE)}
    assert read(store, 7, 0, epoch=7) == data


def test_a_file_that_replaces_another_is_a_delta_against_it(
    store: Store, commit: Callable[..., None]
) -> None:
    """Editors write a new file and rename it over the old one."""
    commit(blocks((7, 0, NOISE), epoch=3), blocks((9, 0, edited(1)), reference=7))
    assert codecs(store) == [codec.RAW, codec.PATCH]
    assert read(store, 9, 0) == edited(1)


def test_a_version_of_another_line_is_no_reference(
    store: Store, commit: Callable[..., None]
) -> None:
    item = blocks((7, 0, edited(1)))
    item.lineage = Lineage(((0, 2), (5, 5)))
    commit(blocks((7, 0, NOISE), epoch=3), item)
    assert codecs(store) == [codec.RAW, codec.RAW]


def test_a_block_that_has_nothing_in_common_stands_alone(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(blocks((7, 0, NOISE), epoch=3), blocks((7, 0, NOISE[::-1])))
    assert codecs(store) == [codec.RAW, codec.RAW]


def test_a_small_block_stands_alone(store: Store, commit: Callable[..., None]) -> None:
    commit(blocks((7, 0, NOISE[:400]), epoch=3), blocks((7, 0, NOISE[:399])))
    assert codecs(store) == [codec.RAW, codec.RAW]


@pytest.mark.parametrize("damage", [b"", b"\2", b"\0\0\0\0\1x", b"\1\0\0\0\1garbage"])
def test_a_damaged_version_before_does_not_stop_the_writer(
    store: Store, commit: Callable[..., None], damage: bytes
) -> None:
    commit(blocks((7, 0, NOISE), epoch=3))
    item = group()
    item.put("block", codec.block_hash(NOISE), damage)
    commit(item)
    commit(blocks((7, 0, edited(1))))
    assert read(store, 7, 0) == edited(1)


def test_dropped_content_is_gone_from_that_epoch_on(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(*(blocks((7, 0, edited(epoch)), epoch=epoch) for epoch in (3, 4, 5)))
    item = group()
    item.dropped.append((7, 4))
    commit(item, blocks((8, 0, NOISE)))
    assert set(rows(store, "extent")) == {keys.extent_key(7, 0, 3), keys.extent_key(8, 0, 5)}


def test_what_the_same_group_writes_is_not_dropped(
    store: Store, commit: Callable[..., None]
) -> None:
    commit(blocks((7, 0, edited(1)), (7, 1, edited(2))))
    item = blocks((7, 0, NOISE))
    item.dropped.append((7, 5))
    commit(item)
    assert rows(store, "extent") == {keys.extent_key(7, 0, 5): codec.block_hash(NOISE)}


# -- failures --------------------------------------------------------------------------------


class Broken:
    """Makes write transactions fail, until it is mended."""

    def __init__(self, store: Store, error: Exception) -> None:
        self._begin = store.begin
        self.error: Exception | None = error
        self.failures = 0
        store.begin = self.begin  # type: ignore[method-assign]

    def begin(self, *, write: bool = False) -> Any:
        if write and self.error is not None:
            self.failures += 1
            raise self.error
        return self._begin(write=write)


NO_ROOM = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    lmdb.MapFullError("mdb_put: MDB_MAP_FULL: Environment mapsize limit reached"),
    lmdb.DiskError("mdb_txn_commit: No space left on device"),
]


@pytest.mark.parametrize("error", NO_ROOM, ids=["ENOSPC", "EDQUOT", "map", "disk"])
def test_without_room_waiters_are_told_and_the_group_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    stored = threading.Event()
    writer = Writer(store)
    writer.set_notify(lambda: stored.set() if writer.failure is None else None)
    broken = Broken(store, error)
    items = [labels(a=b"%d" % number) for number in range(3)]
    for item in items:
        writer.submit(item)
    for item in items:
        with pytest.raises(StoreFullError, match="cannot grow"):
            writer.wait(item, SECONDS)
    failure = writer.failure
    assert failure is error
    assert is_full(error)
    assert not any(item.done for item in items)
    assert rows(store, "label") == {}
    broken.error = None
    assert stored.wait(SECONDS)
    for item in items:
        writer.wait(item, SECONDS)
    assert writer.failure is None
    assert rows(store, "label") == {b"a": b"2"}
    writer.close()


def test_groups_submitted_meanwhile_come_after_those_that_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    writer = Writer(store)
    broken = Broken(store, NO_ROOM[0])
    first, second = labels(a=b"first"), labels(a=b"second")
    writer.submit(first)
    with pytest.raises(StoreFullError):
        writer.wait(first, SECONDS)
    writer.submit(second)
    broken.error = None
    writer.close()
    assert first.done
    assert second.done
    assert rows(store, "label") == {b"a": b"second"}


def test_a_failure_in_the_middle_leaves_nothing_of_the_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    writer = Writer(store)
    put_blocks, calls = groups.GroupWriter._put_blocks, []

    def fail_twice(self: Any) -> None:
        """Also when the reserve was given up."""
        calls.append(1)
        if len(calls) <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        put_blocks(self)

    monkeypatch.setattr(groups.GroupWriter, "_put_blocks", fail_twice)
    good, bad = labels(a=b"1"), blocks((7, 0, NOISE))
    with writer._changed:  # both must be in one commit
        writer._queue.extend((good, bad))
        writer._changed.notify_all()
    with pytest.raises(StoreFullError):
        writer.wait(good, SECONDS)
    writer.close()
    assert rows(store, "label") == {b"a": b"1"}
    assert read(store, 7, 0) == NOISE
    assert writer.commits == 1


def test_a_full_map_really_is_a_full_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB's own error, not one that the test made."""
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    begin, sizes = store.begin, iter([1 << 19, 1 << 28, 1 << 28, 1 << 28])

    def resized(*, write: bool = False) -> Any:
        if write:
            store.env.set_mapsize(next(sizes))
        return begin(write=write)

    store.begin = resized  # type: ignore[method-assign]
    writer = Writer(store)
    item = blocks(*((7, number, edited(number)) for number in range(20)))
    writer.submit(item)
    with pytest.raises(StoreFullError, match="MDB_MAP_FULL"):
        writer.wait(item, SECONDS)
    writer.close()
    assert item.done
    assert len(rows(store, "extent")) == 20


def test_closing_without_room_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    writer = Writer(store)
    Broken(store, NO_ROOM[0])
    writer.submit(labels(a=b"1"))
    with pytest.raises(StoreFullError, match="No space left"):
        writer.close()
    assert rows(store, "label") == {}


def test_a_group_that_failed_can_be_withdrawn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    writer = Writer(store)
    broken = Broken(store, NO_ROOM[0])
    kept, withdrawn = labels(a=b"kept"), labels(b=b"withdrawn")
    writer.submit(kept)
    writer.submit(withdrawn)
    with pytest.raises(StoreFullError):
        writer.wait(withdrawn, SECONDS)
    assert writer.withdraw(withdrawn)
    broken.error = None
    writer.close()
    assert kept.done
    assert not withdrawn.done
    assert rows(store, "label") == {b"a": b"kept"}


def test_what_was_committed_cannot_be_withdrawn(writer: Writer) -> None:
    item = labels(a=b"1")
    writer.submit(item)
    writer.wait(item, SECONDS)
    assert not writer.withdraw(item)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        lmdb.CorruptedError("mdb_get: MDB_CORRUPTED"),
        RuntimeError("something else"),
    ],
)
def test_other_failures_are_not_for_lack_of_room(error: Exception) -> None:
    assert not is_full(error)
