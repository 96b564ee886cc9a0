"""A lineage sees exactly the ancestors of its head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.store.lineage import Lineage
from tests.store.history import ancestors, lineages, trees


@given(trees())
def test_a_lineage_sees_exactly_its_ancestors(parents: list[int]) -> None:
    for epoch, lineage in enumerate(lineages(parents)):
        seen = {other for other in range(len(parents) + 5) if lineage.visible(other)}
        assert seen == ancestors(parents, epoch)
        assert lineage.head == epoch


@given(trees())
def test_the_epochs_of_a_lineage_newest_first(parents: list[int]) -> None:
    for epoch, lineage in enumerate(lineages(parents)):
        assert list(lineage.epochs()) == sorted(ancestors(parents, epoch), reverse=True)


@given(trees())
def test_ranges_ascend(parents: list[int]) -> None:
    for lineage in lineages(parents):
        flat = [end for pair in lineage.ranges for end in pair]
        assert flat == sorted(flat)
        assert len({start for start, _ in lineage.ranges}) == len(lineage.ranges)


@given(trees(), st.data())
def test_cutting_a_lineage_gives_that_of_the_ancestor(
    parents: list[int], data: st.DataObject
) -> None:
    made = lineages(parents)
    epoch = data.draw(st.integers(0, len(parents) - 1))
    at = data.draw(st.sampled_from(sorted(ancestors(parents, epoch))))
    cut = made[epoch].at(at)
    assert set(cut.epochs()) == ancestors(parents, at)
    assert cut.head == at


@given(trees(), st.data())
def test_minus_is_what_only_one_sees(parents: list[int], data: st.DataObject) -> None:
    made = lineages(parents)
    one = data.draw(st.integers(0, len(parents) - 1))
    two = data.draw(st.integers(0, len(parents) - 1))
    ranges = made[one].minus(made[two])
    covered = [epoch for start, end in ranges for epoch in range(start, end + 1)]
    assert covered == sorted(ancestors(parents, one) - ancestors(parents, two))


def test_a_chain_of_checkpoints_is_one_range() -> None:
    lineage = Lineage(((0, 0),))
    for epoch in range(1, 1000):
        lineage = lineage.child(epoch)
    assert lineage.ranges == ((0, 999),)


def test_every_restore_adds_a_range() -> None:
    base = Lineage(((0, 5),))
    assert base.child(9).ranges == ((0, 5), (9, 9))
    assert base.child(9).child(10).ranges == ((0, 5), (9, 10))


@pytest.mark.parametrize("ranges", [(), ((3, 2),), ((0, 1), (5, 4))])
def test_ranges_that_make_no_sense_are_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="bad lineage"):
        Lineage(ranges)


def test_a_child_is_newer_than_its_parent() -> None:
    with pytest.raises(ValueError, match="only grow"):
        Lineage(((0, 5),)).child(5)


def test_a_lineage_is_cut_only_at_its_own_epochs() -> None:
    with pytest.raises(ValueError, match="not in"):
        Lineage(((0, 5), (9, 9))).at(7)
