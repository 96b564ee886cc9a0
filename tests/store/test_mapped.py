"""Blocks are looked at where they lie in the store's file."""

from __future__ import annotations

import itertools
import mmap
import random

import pytest

from cowfs.format import codec
from cowfs.store import mapped
from cowfs.store.env import Store
from cowfs.store.mapped import MappedBlocks
from cowfs.types import BLOCK_SIZE

NOISE = [random.Random(number).randbytes(BLOCK_SIZE) for number in range(40)]
NAMES = [codec.block_hash(data) for data in NOISE]


def put(store: Store, *numbers: int) -> None:
    with store.begin(write=True) as txn:
        for number in numbers:
            txn.put(NAMES[number], codec.encode_block(NOISE[number]), db=store.tables["block"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that the kernel is asked to load."""
    found: list[tuple[int, int]] = []

    def madvise(start: int, size: int, advice: int) -> int:
        assert advice == mmap.MADV_WILLNEED
        assert start % mmap.PAGESIZE == 0  # madvise(2)
        found.append((start, start + size))
        return 0

    monkeypatch.setattr(mapped, "_madvise", madvise)
    return found


def test_it_is_what_the_table_has(store: Store) -> None:
    put(store, 0)
    blocks = MappedBlocks(store)
    value = blocks.get(NAMES[0])
    assert value is not None
    assert bytes(value) == codec.encode_block(NOISE[0])
    assert blocks.get(NAMES[1]) is None
    data = codec.open_block(value, NAMES[0])
    assert isinstance(data, memoryview)
    assert data == NOISE[0]
    blocks.release()


def test_a_newer_commit_shows_after_a_release(store: Store) -> None:
    blocks = MappedBlocks(store)
    assert blocks.get(NAMES[0]) is None
    put(store, 0)
    assert blocks.get(NAMES[0]) is None
    blocks.release()
    assert blocks.get(NAMES[0]) is not None
    blocks.release()
    blocks.release()  # of nothing


def test_a_value_stays_as_it_is_until_the_release(store: Store) -> None:
    put(store, *range(8))
    blocks = MappedBlocks(store)
    values = [blocks.get(name) for name in NAMES[:8]]
    for number in range(8, 24):
        with store.begin(write=True) as txn:
            txn.delete(NAMES[number - 8], db=store.tables["block"])
        put(store, number)
    for name, value in zip(NAMES, values, strict=False):
        assert value is not None
        assert codec.block_hash(codec.open_block(value, name)) == name
    blocks.release()


def read(blocks: MappedBlocks, reader: int, number: int) -> int:
    """Read a block; returns its address."""
    value = blocks.get(NAMES[number])
    assert value is not None
    blocks.ahead(reader, number, value)
    return mapped._address(value)


def test_what_follows_is_loaded_for_who_reads_on(
    store: Store, asked: list[tuple[int, int]]
) -> None:
    put(store, *range(40))
    blocks = MappedBlocks(store)
    places = [read(blocks, 7, number) for number in range(40)]
    assert sorted(places) == places  # as they were written
    assert asked
    for (_, end), (start, _) in itertools.pairwise(asked):
        assert start == end  # nothing twice, nothing left out
    assert places[8] < asked[0][0] + mmap.PAGESIZE
    assert asked[-1][1] > places[39] + BLOCK_SIZE
    blocks.release()


def test_two_who_read_at_the_same_time(store: Store, asked: list[tuple[int, int]]) -> None:
    put(store, *range(40))
    blocks = MappedBlocks(store)
    for number in range(40):
        read(blocks, 7, number)
    alone = list(asked)
    asked.clear()
    for number in range(40):
        read(blocks, 1, number)
        read(blocks, 2, number)
    assert asked[::2] == asked[1::2] == alone
    blocks.release()


@pytest.mark.parametrize("order", ["backwards", "one each", "every second"])
def test_nothing_is_loaded_for_who_reads_here_and_there(
    store: Store, asked: list[tuple[int, int]], order: str
) -> None:
    put(store, *range(40))
    blocks = MappedBlocks(store)
    if order == "backwards":
        for number in range(39, -1, -1):
            read(blocks, 7, number)
    elif order == "one each":
        for number in range(40):
            read(blocks, number, number)
    else:
        for number in range(0, 40, 2):
            read(blocks, 7, number)
    assert asked == []
    blocks.release()


def test_nothing_is_loaded_when_the_blocks_of_a_file_lie_apart(
    store: Store, asked: list[tuple[int, int]]
) -> None:
    for number in range(17):
        put(store, number)
        with store.begin(write=True) as txn:
            txn.put(b"%032d" % number, bytes(1 << 20), db=store.tables["block"])
    blocks = MappedBlocks(store)
    for number in range(17):
        read(blocks, 7, number)
    assert asked == []
    blocks.release()
