"""Keys: what goes in comes out, newer versions sort first, names never interleave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cowfs.format import keys
from tests.format.strategies import EPOCHS, IDS, NAMES, SHORT_NAMES, U64


@given(U64)
def test_an_id_comes_back(number: int) -> None:
    assert keys.unpack_id(keys.pack_id(number)) == number


@given(IDS, EPOCHS)
def test_an_inode_key_comes_back(ino: int, epoch: int) -> None:
    key = keys.inode_key(ino, epoch)
    assert len(key) == 16
    assert (keys.unpack_id(key), keys.epoch_of(key)) == (ino, epoch)


@given(IDS, NAMES, EPOCHS)
def test_a_dirent_key_comes_back(parent: int, name: bytes, epoch: int) -> None:
    key = keys.dirent_key(parent, name, epoch)
    assert key.startswith(keys.dirent_prefix(parent, name))
    found = keys.unpack_id(key), keys.dirent_name(key), keys.epoch_of(key)
    assert found == (parent, name, epoch)


@given(IDS, NAMES, EPOCHS)
def test_an_xattr_key_comes_back(ino: int, name: bytes, epoch: int) -> None:
    key = keys.xattr_key(ino, name, epoch)
    assert key.startswith(keys.xattr_prefix(ino, name))
    assert (keys.unpack_id(key), keys.xattr_name(key), keys.epoch_of(key)) == (ino, name, epoch)


@given(IDS, IDS, NAMES, EPOCHS)
def test_a_link_key_comes_back(ino: int, parent: int, name: bytes, epoch: int) -> None:
    key = keys.link_key(ino, parent, name, epoch)
    assert key.startswith(keys.link_prefix(ino, parent, name))
    assert (keys.unpack_id(key), keys.link_parts(key)) == (ino, (parent, name))
    assert keys.epoch_of(key) == epoch


@given(IDS, IDS, EPOCHS)
def test_an_extent_key_comes_back(content: int, block: int, epoch: int) -> None:
    key = keys.extent_key(content, block, epoch)
    assert len(key) == 24
    assert key.startswith(keys.extent_prefix(content, block))
    found = keys.unpack_id(key), keys.extent_block(key), keys.epoch_of(key)
    assert found == (content, block, epoch)


@given(EPOCHS, IDS)
def test_a_change_of_an_inode_comes_back(epoch: int, ino: int) -> None:
    key = keys.change_inode_key(epoch, ino)
    assert keys.unpack_id(key) == epoch
    assert keys.change_parts(key) == (keys.KIND_INODE, ino, b"")


@given(EPOCHS, IDS, NAMES)
def test_a_change_of_a_name_comes_back(epoch: int, parent: int, name: bytes) -> None:
    key = keys.change_dirent_key(epoch, parent, name)
    assert keys.unpack_id(key) == epoch
    assert keys.change_parts(key) == (keys.KIND_DIRENT, parent, name)


@given(IDS, NAMES)
def test_a_base_key_comes_back(parent: int, name: bytes) -> None:
    key = keys.base_key(parent, name)
    assert (keys.unpack_id(key), key[8:]) == (parent, name)


@given(U64, U64)
def test_a_hardlink_key_is_as_long_as_two_ids(dev: int, ino: int) -> None:
    key = keys.hardlink_key(dev, ino)
    assert (keys.unpack_id(key), keys.unpack_id(key[8:])) == (dev, ino)


@given(st.sets(EPOCHS, min_size=2))
def test_newer_versions_sort_first(epochs: set[int]) -> None:
    newest_first = sorted(epochs, reverse=True)
    for made in (
        [keys.inode_key(7, epoch) for epoch in newest_first],
        [keys.dirent_key(7, b"name", epoch) for epoch in newest_first],
        [keys.link_key(7, 8, b"name", epoch) for epoch in newest_first],
        [keys.extent_key(7, 8, epoch) for epoch in newest_first],
    ):
        assert made == sorted(made)


@given(st.sets(st.tuples(IDS, SHORT_NAMES, EPOCHS), min_size=2))
def test_the_versions_of_one_name_are_neighbours(versions: set[tuple[int, bytes, int]]) -> None:
    found = [(keys.unpack_id(k), keys.dirent_name(k)) for k in sorted(_dirents(versions))]
    runs = [thing for at, thing in enumerate(found) if at == 0 or found[at - 1] != thing]
    assert len(runs) == len(set(runs)), "the versions of one name lie apart"
    assert runs == sorted(runs, key=lambda thing: (thing[0], thing[1] + b"\0"))


def _dirents(versions: set[tuple[int, bytes, int]]) -> list[bytes]:
    return [keys.dirent_key(*version) for version in versions]


@given(IDS, SHORT_NAMES, SHORT_NAMES, EPOCHS)
def test_no_name_is_a_prefix_of_another_ones_versions(
    parent: int, one: bytes, two: bytes, epoch: int
) -> None:
    key = keys.dirent_key(parent, two, epoch)
    assert key.startswith(keys.dirent_prefix(parent, one)) == (one == two)


@given(st.sets(st.tuples(IDS, IDS, EPOCHS), min_size=2))
def test_extents_sort_by_content_block_and_newest_first(parts: set[tuple[int, int, int]]) -> None:
    by_key = sorted(parts, key=lambda part: keys.extent_key(*part))
    assert by_key == sorted(parts, key=lambda part: (part[0], part[1], -part[2]))


@given(st.sets(EPOCHS, min_size=2))
def test_changes_sort_oldest_epoch_first(epochs: set[int]) -> None:
    made = [keys.change_inode_key(epoch, 5) for epoch in sorted(epochs)]
    assert made == sorted(made)


def test_the_longest_keys_fit_into_lmdb() -> None:
    """LMDB's limit is 511 bytes."""
    name, most = b"n" * 255, (1 << 64) - 1
    assert len(keys.link_key(most, most, name, 0)) == 280
    assert len(keys.change_dirent_key(most, most, name)) == 272
