"""What the open epoch writes and takes back leaves no block; what a sealed epoch needs stays."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from cowfs.errors import StoreFullError
from cowfs.format import codec, keys
from cowfs.store import group as groups
from cowfs.store.env import Store
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, read_block
from cowfs.store.writer import Writer

LINE = Lineage(((0, 1000),))


def noise(seed: int, size: int = 2000) -> bytes:
    return random.Random(seed).randbytes(size)


def made(
    *written: tuple[int, int, bytes | None], dropped: tuple[int, ...] = (), epoch: int = 5
) -> TransactionGroup:
    """A group that writes (content, block number, data) and drops contents."""
    group = TransactionGroup(epoch, LINE.at(epoch))
    group.blocks = [(content, number, data, 0, epoch) for content, number, data in written]
    group.dropped = [(content, epoch) for content in dropped]
    return group


def commit(writer: Writer, *groups: TransactionGroup) -> None:
    """In one transaction."""
    with writer._changed:
        writer._queue.extend(groups)
        writer._changed.notify_all()
    for group in groups:
        writer.wait(group, 30)


def stored(store: Store) -> set[bytes]:
    with Reader(store) as reader:
        return {key for key, _ in reader.scan("block")}


def needed(store: Store) -> set[bytes]:
    """Every block that an extent names, or a needed block is a delta of."""
    with Reader(store) as reader:
        found = {value for _, value in reader.scan("extent") if len(value) == codec.HASH_SIZE}
        for digest in list(found):
            reference = codec.delta_reference(reader.get("block", digest) or b"")
            if reference is not None:
                found.add(reference)
        return found


def test_an_overwritten_block_goes(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1))))
    commit(writer, made((7, 0, noise(2))))
    assert stored(store) == {codec.block_hash(noise(2))}


def test_a_hole_in_its_place(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1))))
    commit(writer, made((7, 0, None)))
    assert stored(store) == set()


def test_the_block_stays_while_another_file_has_it(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1)), (8, 3, noise(1))))
    commit(writer, made(dropped=(7,)))
    assert stored(store) == {codec.block_hash(noise(1))}
    commit(writer, made(dropped=(8,)))
    assert stored(store) == set()


def test_a_block_that_comes_back(store: Store, writer: Writer) -> None:
    for _ in range(3):
        commit(writer, made((7, 0, noise(1))))
        commit(writer, made(dropped=(7,)))
        assert stored(store) == set()
    commit(writer, made((7, 0, noise(1))), made(dropped=(7,)), made((9, 0, noise(1))))
    assert stored(store) == {codec.block_hash(noise(1))}


def test_the_reference_of_a_delta_stays_as_long_as_the_delta(store: Store, writer: Writer) -> None:
    first = noise(1, 60000)
    second = first[:30000] + b"changed" + first[30007:]
    commit(writer, made((7, 0, first)))
    commit(writer, made((7, 0, second)))
    assert stored(store) == {codec.block_hash(first), codec.block_hash(second)}
    with Reader(store) as reader:
        assert read_block(reader, codec.block_hash(second)) == second
    commit(writer, made(dropped=(7,)))
    assert stored(store) == set()


def test_what_a_sealed_epoch_wrote_stays(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1)), epoch=5))
    commit(writer, made((7, 0, noise(2)), epoch=6))
    commit(writer, made((7, 0, noise(3)), epoch=6))
    commit(writer, made(dropped=(7,), epoch=6))
    assert stored(store) == {codec.block_hash(noise(1))}


def test_what_was_there_before_this_process_stays(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1))))
    writer.close()
    second = Writer(store)
    commit(second, made((8, 0, noise(1))))
    commit(second, made(dropped=(8,)))
    commit(second, made(dropped=(7,)))
    second.close()
    assert stored(store) == {codec.block_hash(noise(1))}


def test_what_a_later_group_drops_is_not_written_at_all(store: Store, writer: Writer) -> None:
    put: list[bytes] = []
    apply_put = groups.GroupWriter._put_blocks

    def spy(self: groups.GroupWriter) -> None:
        apply_put(self)
        cursor = self.txn.cursor(db=store.tables["block"])
        if cursor.set_range(b""):
            put.extend(key for key, _ in cursor.following())

    groups.GroupWriter._put_blocks = spy  # type: ignore[method-assign]
    try:
        commit(
            writer,
            made((7, 0, noise(1)), (7, 1, noise(2)), (8, 0, noise(3)), epoch=5),
            made((7, 1, noise(4)), (9, 0, noise(5)), epoch=5),
            made((9, 0, noise(6)), dropped=(9, 8), epoch=5),
        )
    finally:
        groups.GroupWriter._put_blocks = apply_put  # type: ignore[method-assign]
    kept = {codec.block_hash(noise(seed)) for seed in (1, 4, 6)}
    assert set(put) == kept == stored(store) == needed(store)


def test_a_later_epoch_supersedes_nothing_of_an_earlier_one(store: Store, writer: Writer) -> None:
    commit(
        writer,
        made((7, 0, noise(1)), epoch=5),
        made((7, 0, noise(2)), epoch=6),
        made(dropped=(7,), epoch=6),
    )
    with Reader(store) as reader:
        assert dict(reader.scan("extent")) == {keys.extent_key(7, 0, 5): codec.block_hash(noise(1))}
    assert stored(store) == needed(store)


def test_a_commit_that_failed_counts_nothing(store: Store, writer: Writer) -> None:
    commit(writer, made((7, 0, noise(1))))
    collect, failures = writer._collect, [2]

    def fail(txn: object) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        collect(txn)  # type: ignore[arg-type]

    writer._collect = fail  # type: ignore[method-assign]
    item = made((7, 0, noise(2)), (8, 0, noise(1)))
    writer.submit(item)
    with pytest.raises(StoreFullError):
        writer.wait(item, 30)
    writer.submit(made(dropped=(8,)))
    writer.close()
    assert stored(store) == {codec.block_hash(noise(2))}


def once_without_room(collect: Callable[[Any], None]) -> Callable[[Any], None]:
    """`collect`, but the first call fails."""
    failed = False

    def run(txn: Any) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(errno.ENOSPC, "No space left on device")
        collect(txn)

    return run


@pytest.mark.parametrize("seed", range(8))
def test_exactly_what_is_needed_is_there(store: Store, writer: Writer, seed: int) -> None:
    """Random writes, holes and drops in one epoch, several groups a transaction; some fail."""
    chance = random.Random(seed)
    texts = [noise(number // 3, 40000) + noise(number) for number in range(12)]
    for _ in range(60):
        groups = []
        for _ in range(chance.choice((1, 1, 3))):
            written = [
                (chance.randrange(4), chance.randrange(3), chance.choice([*texts, None]))
                for _ in range(chance.randrange(4))
            ]
            dropped = tuple(c for c in range(4) if chance.random() < 0.15)
            groups.append(made(*written, dropped=dropped))
        if chance.random() < 0.2:
            writer._collect = once_without_room(writer._collect)  # type: ignore[method-assign, assignment]
        commit(writer, *groups)  # the second attempt succeeds: there is a reserve, or a retry
    while writer.ledger.has_unused:
        commit(writer, made())
    assert stored(store) == needed(store)
