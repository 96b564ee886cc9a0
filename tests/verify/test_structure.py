"""Damage to the pages of LMDB's file: found without a crash, and the rest is still verified."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cowfs.errors import StoreDamagedError
from cowfs.store.pages import DamagedFileError, PageCheck
from tests.verify.sample import Sample

PAGE = 4096
LEAF, OVERFLOW = 2, 4

# The layout of pages and nodes is described in cowfs/store/pages.py.


def pages_of(sample: Sample, table: str) -> list[int]:
    """The page numbers of a table's own pages, from a walk of its file."""
    check = PageCheck(sample.store / "data.mdb")
    found: list[int] = []
    claim = check._claim

    def note(name: str, page: int, count: int = 1) -> str:
        if name == table:
            found.extend(range(page, page + count))
        return claim(name, page, count)

    check._claim = note  # type: ignore[method-assign]
    assert list(check.run()) == []
    return found


def write(sample: Sample, page: int, offset: int, data: bytes) -> None:
    with open(sample.store / "data.mdb", "r+b") as file:
        file.seek(page * PAGE + offset)
        file.write(data)


def read(sample: Sample, page: int) -> bytes:
    with open(sample.store / "data.mdb", "rb") as file:
        file.seek(page * PAGE)
        return file.read(PAGE)


def leaf_of(sample: Sample, table: str) -> int:
    return next(
        p for p in pages_of(sample, table) if is_head(sample, p) and read(sample, p)[10] & LEAF
    )


def found(sample: Sample, table: str) -> list[str]:
    """Details of the structure problems, which must be all in `table`."""
    report = sample.verify()
    assert {problem.check for problem in report.problems} == {"structure"}
    assert {problem.table for problem in report.problems} == {table}
    return [problem.detail for problem in report.problems]


def test_a_page_that_says_another_number(sample: Sample) -> None:
    write(sample, leaf_of(sample, "block"), 0, (77).to_bytes(8, "little"))
    (detail,) = found(sample, "block")
    assert detail == "it says that it is page 77"


def test_a_page_of_another_type(sample: Sample) -> None:
    write(sample, leaf_of(sample, "extent"), 10, b"\4\0")
    (detail,) = found(sample, "extent")
    assert detail == "it has the type 4"


def test_a_page_with_impossible_bounds(sample: Sample) -> None:
    write(sample, leaf_of(sample, "dirent"), 12, b"\xff\xff")
    (detail,) = found(sample, "dirent")
    assert detail.startswith("its bounds are 65535")


def test_a_node_outside_its_page(sample: Sample) -> None:
    write(sample, leaf_of(sample, "inode"), 16, b"\xf8\xff")
    (detail,) = found(sample, "inode")
    assert detail == "node 0 lies at 65528"


def test_a_key_longer_than_its_page(sample: Sample) -> None:
    leaf = leaf_of(sample, "inode")
    node = int.from_bytes(read(sample, leaf)[16:18], "little")
    write(sample, leaf, node + 6, b"\xff\xff")
    (detail,) = found(sample, "inode")
    assert detail == "the key of node 0 reaches beyond the page"


def test_keys_out_of_order(sample: Sample) -> None:
    leaf = leaf_of(sample, "link")
    first, second = read(sample, leaf)[16:18], read(sample, leaf)[18:20]
    write(sample, leaf, 16, second + first)
    (detail,) = found(sample, "link")
    assert detail == "the key of node 1 is out of order"


def test_an_overflow_page_that_is_none(sample: Sample) -> None:
    overflow = next(
        p
        for p in pages_of(sample, "block")
        if is_head(sample, p) and read(sample, p)[10] & OVERFLOW
    )
    write(sample, overflow, 10, b"\2\0")
    (detail,) = found(sample, "block")
    assert f"page {overflow} is not its overflow page" in detail


def test_a_value_that_points_outside_the_file(sample: Sample) -> None:
    leaf = leaf_of(sample, "block")
    page = read(sample, leaf)
    for at in range(16, int.from_bytes(page[12:14], "little"), 2):
        node = int.from_bytes(page[at : at + 2], "little")
        if page[node + 4] & 1:  # a long value: its page number follows the key
            write(sample, leaf, node + 8 + 32, (1 << 40).to_bytes(8, "little"))
            break
    (detail,) = found(sample, "block")
    assert "outside the pages in use" in detail


def test_a_page_that_belongs_to_two_values(sample: Sample) -> None:
    leaf = leaf_of(sample, "block")
    page = read(sample, leaf)
    places = []
    for at in range(16, int.from_bytes(page[12:14], "little"), 2):
        node = int.from_bytes(page[at : at + 2], "little")
        if page[node + 4] & 1:
            places.append(node + 8 + 32)
    one, two = places[:2]
    write(sample, leaf, two, page[one : one + 8])
    assert any("belongs to something else as well" in detail for detail in found(sample, "block"))


def test_a_file_that_was_cut_off(sample: Sample) -> None:
    path = sample.store / "data.mdb"
    os.truncate(path, max(pages_of(sample, "block")) * PAGE)
    details = [damage.detail for damage in PageCheck(path).run()]
    assert any(detail.endswith("it lies beyond the end of the file") for detail in details)
    with pytest.raises(StoreDamagedError, match="cut off"):
        sample.verify()


def test_damage_in_one_table_leaves_the_others_verified(sample: Sample) -> None:
    write(sample, leaf_of(sample, "block"), 0, (77).to_bytes(8, "little"))
    with sample.open() as hands:
        hands.put("label", b"nowhere", b"0" * 12)
    report = sample.verify()
    assert {problem.check for problem in report.problems} == {"structure", "label"}
    assert report.skipped == ["blocks", "extents", "unused", "thinned"]
    assert report.checked["inode"] > 0


def test_a_free_page_that_is_in_use(sample: Sample) -> None:
    used = leaf_of(sample, "inode")
    free = leaf_of(sample, "(free list)")
    page = read(sample, free)
    node = int.from_bytes(page[16:18], "little")
    write(sample, free, node + 8 + 8 + 8, used.to_bytes(8, "little"))
    (detail,) = found(sample, "(free list)")
    assert detail == "it is in use, but also free"


def test_a_long_value_that_became_shorter_in_one_transaction(sample: Sample) -> None:
    """LMDB leaves it the pages that it had."""
    with sample.open() as hands:
        for size in (60_000, 5_000, 10):
            hands.put("meta", b"a program's own", bytes(size))
    report = sample.verify()
    assert report.problems == []


def test_a_file_without_meta_pages(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(bytes(2 * PAGE))
    with pytest.raises(DamagedFileError):
        list(PageCheck(path).run())


@pytest.mark.parametrize("seed", range(20))
def test_garbage_anywhere_is_found_and_never_crashes(sample: Sample, seed: int) -> None:
    """Whole pages overwritten: every page in use that is hit is noticed."""
    chance = random.Random(seed)
    table = chance.choice(["inode", "dirent", "link", "extent", "change", "xattr", "block"])
    page = chance.choice(pages_of(sample, table))
    heads = {p for p in pages_of(sample, table) if is_head(sample, p)}
    write(sample, page, 0, chance.randbytes(PAGE))
    report = sample.verify()
    assert {problem.table for problem in report.problems} == {table}
    # A page inside a long value has no header: there the block's hash tells.
    wanted = "structure" if page in heads else "block-damaged"
    assert {problem.check for problem in report.problems} == {wanted}


def is_head(sample: Sample, page: int) -> bool:
    """Whether a page has a header of its own."""
    return int.from_bytes(read(sample, page)[:8], "little") == page
