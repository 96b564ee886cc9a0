"""Blocks are looked at where they lie in the store's file."""

from __future__ import annotations

import random

from cowfs.format import codec
from cowfs.store.env import Store
from cowfs.store.mapped import MappedBlocks
from cowfs.types import BLOCK_SIZE

NOISE = [random.Random(number).randbytes(BLOCK_SIZE) for number in range(24)]
NAMES = [codec.block_hash(data) for data in NOISE]


def put(store: Store, *numbers: int) -> None:
    with store.begin(write=True) as txn:
        for number in numbers:
            txn.put(NAMES[number], codec.encode_block(NOISE[number]), db=store.tables["block"])


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
