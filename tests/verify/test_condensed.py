"""Damage of what condensed values need, and of such values themselves."""

from __future__ import annotations

import pytest

from cowfs.format import condensed, keys, records, version
from cowfs.format.condensed import DICTIONARY, MARK, TWIN
from cowfs.service.repair import Repaired, repair
from cowfs.store import condensing
from cowfs.store.compaction import compact
from cowfs.store.rewriting import silent
from tests.verify.sample import Hands, Sample


@pytest.fixture
def made(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """The sample, compacted, with dictionaries for all tables that may have one."""
    monkeypatch.setattr(condensing, "_WORTH", 0)
    (sample.store / "lock.mdb").touch()
    compact(sample.store, silent)
    with sample.open() as hands:
        for name in condensed.TABLES:
            assert any(value[:1] == MARK for _, value in hands.rows(name)), name
    assert sample.verify().problems == sample.verify().notes == []
    return sample


def mend(sample: Sample) -> Repaired:
    return repair(sample.store, None, dry_run=False, progress=silent)


@pytest.mark.parametrize("prefix", [DICTIONARY, TWIN])
@pytest.mark.parametrize("way", ["gone", "damaged", "another"])
def test_one_copy_of_a_dictionary(made: Sample, prefix: bytes, way: str) -> None:
    key = prefix + b"context"
    with made.open() as hands:
        stored = hands.stored("meta", key)
        if way == "gone":
            hands.drop("meta", key)
        elif way == "damaged":
            hands.store("meta", key, stored[:9] + b"!" + stored[10:])
        else:
            hands.put("meta", key, stored[:30])
    assert "dictionary" in {problem.check for problem in made.verify().problems}
    mend(made)
    assert made.verify().problems == made.verify().notes == []
    with made.open() as hands:
        assert (
            hands.stored("meta", DICTIONARY + b"context")[:-4]
            == (hands.stored("meta", TWIN + b"context")[:-4])
        )
        assert stored[:-4] == hands.get("meta", key)


def test_both_copies_are_gone(made: Sample) -> None:
    """What was said of the surroundings is lost, and nothing else."""
    with made.open() as hands:
        for prefix in (DICTIONARY, TWIN):
            hands.drop("meta", prefix + b"context")
    assert {problem.table for problem in made.verify().problems} == {"context"}
    mend(made)
    assert made.verify().problems == []
    with made.open() as hands:
        assert hands.rows("checkpoint")


def flip(hands: Hands, table: str, key: bytes, at: int) -> None:
    stored = hands.stored(table, key)
    hands.store(table, key, stored[:at] + bytes((stored[at] ^ 1,)) + stored[at + 1 :])


@pytest.mark.parametrize("at", [0, 5, 15])
def test_a_bit_of_a_short_inode(made: Sample, at: int) -> None:
    key = keys.inode_key(made.inos["src/main"], 1)
    with made.open() as hands:
        before = hands.stored("inode", key)
        assert condensed.is_short(before[:-4])
        flip(hands, "inode", key, at)
    (problem,) = made.verify().problems
    assert (problem.check, problem.paths) == ("record-checksum", ("src/alias", "src/main"))
    mend(made)
    assert made.verify().problems == []
    with made.open() as hands:
        assert hands.inode("src/main", 1) == records.unpack_inode(condensed.lengthen(before[:-4]))


@pytest.mark.parametrize("table", condensed.TABLES)
def test_a_bit_of_a_compressed_value(made: Sample, table: str) -> None:
    with made.open() as hands:
        key = next(key for key, value in hands.rows(table) if value[:1] == MARK)
        flip(hands, table, key, 7)
    assert "record-checksum" in {problem.check for problem in made.verify().problems}
    mend(made)
    assert made.verify().problems == []


def test_the_format_record_tells_of_them(made: Sample) -> None:
    with made.open() as hands:
        record = version.decode_format(hands.get("meta", b"format"))
        assert record.incompatible == version.SEGMENTS | version.CONDENSED
        hands.drop("meta", b"format")
    mend(made)
    assert made.verify().problems == []
    with made.open() as hands:
        record = version.decode_format(hands.get("meta", b"format"))
        assert record.incompatible == version.SEGMENTS | version.CONDENSED
