"""A snapshot shows what a plain model says that an epoch sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.store.env import Store, create_store
from cowfs.store.snapshot import Reader, Snapshot, read_block
from cowfs.types import BLOCK_SIZE
from tests.store.history import ancestors, epoch_rows, lineages, trees

Row = tuple[str, bytes, bytes]
NAMES = st.sampled_from([b"a", b"ab", b"b", b"a\x01", b"\xff"])


class Scratch:
    """One store for many examples: making one takes longer than an example."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def holding(self, rows: list[Row]) -> Iterator[Reader]:
        """A reader of a store that has these records and no others."""
        with self._store.begin(write=True) as txn:
            for name in {"epoch", "dirent", "link", "xattr", "extent"}:
                with txn.cursor(db=self._store.tables[name]) as cursor:
                    while cursor.set_range(b""):
                        cursor.delete()
            for table, key, value in rows:
                txn.put(key, value, db=self._store.tables[table])
        with Reader(self._store) as reader:
            yield reader


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    store = create_store(tmp_path_factory.mktemp("scratch") / "store", [])
    yield Scratch(store)
    store.close()


def put(store: Store, rows: list[Row]) -> None:
    with store.begin(write=True) as txn:
        for table, key, value in rows:
            txn.put(key, value, db=store.tables[table])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], dict[tuple[bytes, int], int]]:
    """A tree of epochs, and versions of names: (name, epoch) to inode number, 0 for a whiteout."""
    parents = draw(trees(most=10))
    versions = draw(
        st.dictionaries(
            st.tuples(NAMES, st.integers(0, len(parents) - 1)), st.integers(0, 3), max_size=15
        )
    )
    return parents, versions


def seen(
    parents: list[int], versions: dict[tuple[bytes, int], int], epoch: int
) -> dict[bytes, int]:
    """What the model says: for each name the version of the youngest ancestor."""
    found = {}
    for name, at in sorted(versions, key=lambda key: key[1]):
        if at in ancestors(parents, epoch):
            found[name] = versions[(name, at)]
    return {name: ino for name, ino in found.items() if ino}


@settings(max_examples=60)
@given(history=histories())
def test_names_are_what_the_ancestors_say(
    scratch: Scratch, history: tuple[list[int], dict[tuple[bytes, int], int]]
) -> None:
    parents, versions = history
    rows = epoch_rows(parents)
    for (name, at), ino in versions.items():
        entry = records.pack_dirent(ino, 8) if ino else records.WHITEOUT
        rows.append(("dirent", keys.dirent_key(7, name, at), entry))
        rows.append(("xattr", keys.xattr_key(7, name, at), b"\1%d" % ino if ino else b""))
        rows.append(("link", keys.link_key(7, 7, name, at), b"\x08" if ino else b""))
        # Neighbours that must not leak in.
        rows.append(("dirent", keys.dirent_key(6, name, at), records.pack_dirent(99, 8)))
        rows.append(("dirent", keys.dirent_key(8, name, at), records.pack_dirent(99, 8)))
    with scratch.holding(rows) as reader:
        for epoch in range(len(parents)):
            snapshot = Snapshot(reader, reader.lineage(epoch))
            wanted = seen(parents, versions, epoch)
            assert list(snapshot.entries(7)) == [(n, wanted[n], 8) for n in sorted(wanted)]
            assert snapshot.xattrs(7) == {name: b"%d" % ino for name, ino in wanted.items()}
            assert sorted(snapshot.links(7)) == [(7, name) for name in sorted(wanted)]
            for name in (b"a", b"ab", b"b", b"a\x01", b"\xff", b"never"):
                found = snapshot.lookup(7, name)
                assert found == ((wanted[name], 8) if name in wanted else None)


@settings(max_examples=60)
@given(
    parents=trees(most=10),
    versions=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 9)), st.integers(0, 2), max_size=12
    ),
)
def test_extents_are_what_the_ancestors_say(
    scratch: Scratch, parents: list[int], versions: dict[tuple[int, int], int]
) -> None:
    versions = {key: value for key, value in versions.items() if key[1] < len(parents)}
    rows = epoch_rows(parents)
    for (block, at), which in versions.items():
        rows.append(
            ("extent", keys.extent_key(7, block, at), bytes([which]) * 32 if which else b"")
        )
        rows.append(("extent", keys.extent_key(8, block, at), bytes([9]) * 32))
    with scratch.holding(rows) as reader:
        for epoch, lineage in enumerate(lineages(parents)):
            found: dict[int, bytes] = {}
            for (block, at), which in sorted(versions.items(), key=lambda item: item[0][1]):
                if at in ancestors(parents, epoch):
                    found[block] = bytes([which]) * 32 if which else b""
            snapshot = Snapshot(reader, lineage)
            assert list(snapshot.extents(7)) == sorted(found.items())
            assert list(snapshot.extents(7, first=2)) == sorted(
                item for item in found.items() if item[0] >= 2
            )


@given(parents=trees())
@settings(max_examples=40)
def test_a_lineage_is_read_run_by_run(scratch: Scratch, parents: list[int]) -> None:
    with scratch.holding(epoch_rows(parents)) as reader:
        for epoch, lineage in enumerate(lineages(parents)):
            assert reader.lineage(epoch).ranges == lineage.ranges


def _epoch(parent: int, run_start: int) -> bytes:
    return records.encode(records.EpochRecord(parent, run_start, "main", 1))


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        ([], "it does not exist"),
        ([("epoch", keys.pack_id(5), _epoch(4, 6))], "its run starts after it"),
        ([("epoch", keys.pack_id(5), _epoch(5, 5))], "its parent is younger"),
        ([("epoch", keys.pack_id(5), b"garbage")], "malformed|Expected"),
    ],
)
def test_a_lineage_that_cannot_be(scratch: Scratch, rows: list[Row], detail: str) -> None:
    with scratch.holding(rows) as reader, pytest.raises(DamagedRecordError, match=detail):
        reader.lineage(5)


def test_a_version_of_another_inode_is_not_found(store: Store) -> None:
    inode = records.pack_inode(0, 0o100644, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, b"")
    put(store, [("inode", keys.inode_key(7, 0), inode), *epoch_rows([0])])
    with Reader(store) as reader:
        snapshot = Snapshot(reader, reader.lineage(0))
        assert snapshot.inode(7) is not None
        assert snapshot.inode(6) is None
        assert snapshot.inode(8) is None


DIGEST, SEALED = b"d" * 32, b"s" * 32


@pytest.mark.parametrize(
    ("versions", "base_size", "wanted"),
    [
        ({}, 0, (b"", 0)),
        ({}, 100, (None, 100 - 0)),
        ({3: DIGEST}, 0, (DIGEST, BLOCK_SIZE)),
        ({3: DIGEST}, 100, (DIGEST, BLOCK_SIZE)),
        ({3: b""}, 100, (b"", BLOCK_SIZE)),
        ({0: SEALED}, 100, (SEALED, 100)),
        ({0: SEALED}, 0, (b"", 0)),
        ({0: SEALED, 3: DIGEST}, 100, (DIGEST, BLOCK_SIZE)),
        ({3: records.EXTENT_BASE}, 100, (None, 100)),
        ({3: records.EXTENT_BASE}, 0, (b"", 0)),
        ({0: SEALED, 3: records.EXTENT_BASE}, 100, (SEALED, 100)),
        ({0: SEALED, 3: records.EXTENT_BASE}, 0, (b"", 0)),
        ({9: DIGEST}, 100, (None, 100)),
    ],
)
def test_where_a_block_comes_from(
    store: Store,
    versions: dict[int, bytes],
    base_size: int,
    wanted: tuple[bytes | None, int],
) -> None:
    rows = [("extent", keys.extent_key(7, 0, epoch), value) for epoch, value in versions.items()]
    put(store, [*rows, *epoch_rows([0, 0, 1, 2, 3])])
    with Reader(store) as reader:
        snapshot = Snapshot(reader, reader.lineage(4))
        assert snapshot.block_source(7, 0, base_size) == wanted


def test_blocks_beyond_the_base_are_zeros(store: Store) -> None:
    put(store, epoch_rows([0]))
    with Reader(store) as reader:
        snapshot = Snapshot(reader, reader.lineage(0))
        assert snapshot.block_source(7, 1, BLOCK_SIZE + 5) == (None, 5)
        assert snapshot.block_source(7, 2, BLOCK_SIZE + 5) == (b"", 0)


def test_paths_of_an_inode(store: Store) -> None:
    rows: list[Row] = [
        ("link", keys.link_key(2, 1, b"top", 0), b"\4"),
        ("link", keys.link_key(3, 2, b"below", 0), b"\4"),
        ("link", keys.link_key(4, 3, b"file", 0), b"\x08"),
        ("link", keys.link_key(4, 1, b"other", 0), b"\x08"),
        ("link", keys.link_key(6, 5, b"lost", 0), b"\x08"),
    ]
    put(store, [*rows, *epoch_rows([0])])
    with Reader(store) as reader:
        snapshot = Snapshot(reader, reader.lineage(0))
        assert snapshot.directory_path(1) == b""
        assert snapshot.directory_path(3) == b"top/below"
        assert snapshot.names_of(4) == [b"other", b"top/below/file"]
        assert snapshot.names_of(6) == []
        assert snapshot.directory_path(5) is None


def test_a_loop_of_directories_has_no_path(store: Store) -> None:
    rows: list[Row] = [
        ("link", keys.link_key(2, 3, b"a", 0), b"\4"),
        ("link", keys.link_key(3, 2, b"b", 0), b"\4"),
    ]
    put(store, [*rows, *epoch_rows([0])])
    with Reader(store) as reader:
        assert Snapshot(reader, reader.lineage(0)).directory_path(2) is None


# -- blocks ----------------------------------------------------------------------------------


def _stored_block(data: bytes, value: bytes | None = None) -> Row:
    return "block", codec.block_hash(data), codec.encode_block(data) if value is None else value


REFERENCE, DATA = b"reference" * 100, b"reference" * 99 + b"different"


def _delta() -> bytes:
    return codec.encode_delta(DATA, REFERENCE, codec.block_hash(REFERENCE))


def test_a_delta_is_read_through_its_reference(store: Store) -> None:
    put(store, [_stored_block(REFERENCE), _stored_block(DATA, _delta())])
    with Reader(store) as reader:
        assert read_block(reader, codec.block_hash(DATA)) == DATA


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        ([], "it is missing"),
        ([_stored_block(DATA, _delta())], "its reference [0-9a-f]{12} is missing"),
        ([_stored_block(DATA, _delta()), _stored_block(REFERENCE, _delta())], "is itself a delta"),
        ([_stored_block(DATA, b"\0\0\0\0\1x")], "do not match its hash"),
        ([_stored_block(DATA, b"")], "too short"),
        ([_stored_block(DATA, b"\2")], "too short"),
    ],
)
def test_a_block_that_cannot_be_read(store: Store, rows: list[Row], detail: str) -> None:
    put(store, rows)
    with Reader(store) as reader, pytest.raises(DamagedRecordError, match=detail):
        read_block(reader, codec.block_hash(DATA))


def test_a_reader_keeps_its_moment(store: Store) -> None:
    put(store, epoch_rows([0]))
    with Reader(store) as before:
        put(store, [("label", b"later", b"x")])
        assert before.get("label", b"later") is None
        assert list(before.scan("label")) == []
        with Reader(store) as after:
            assert after.get("label", b"later") == b"x"


def test_a_scan_ends_with_its_prefix(store: Store) -> None:
    put(store, [("label", name, b"") for name in (b"a", b"ba", b"bb", b"c")])
    with Reader(store) as reader:
        assert [key for key, _ in reader.scan("label", b"b")] == [b"ba", b"bb"]
        assert [key for key, _ in reader.scan("label")] == [b"a", b"ba", b"bb", b"c"]
        assert list(reader.scan("label", b"d")) == []


def test_a_branch_that_is_missing(store: Store) -> None:
    with Reader(store) as reader, pytest.raises(DamagedRecordError, match="branch main"):
        reader.branch("main")
