"""Who sees which version, against asking every state in turn."""

from __future__ import annotations

import random

import pytest

from cowfs.tree.keeping import Kept
from tests.store.history import ancestors


def sees(parents: dict[int, int], state: int, versions: list[int]) -> int | None:
    """Which of the versions, newest first, a state sees."""
    line = ancestors(parents, state)
    return next((epoch for epoch in versions if epoch in line), None)


@pytest.mark.parametrize("seed", range(300))
def test_any_tree(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 24)
    parents = {n: n - 1 if rng.random() < 0.7 else rng.randrange(n) for n in range(1, count)}
    states = {0, *(n for n in range(count) if rng.random() < 0.4)}
    chosen = sorted({n for n in range(count) if rng.random() < 0.6}, reverse=True)
    versions = [(epoch, rng.random() < 0.6) for epoch in chosen]
    kept = Kept(parents, states)
    for epoch, seen in zip(chosen, kept.seen(chosen), strict=True):
        wanted = {s for s in states if sees(parents, s, chosen) == epoch}
        assert seen == sum(kept.state(s) for s in wanted)
    head = rng.randrange(1, count + 1)
    gone = kept.superfluous(versions, head)
    assert gone == sorted(gone)
    left = [(epoch, there) for epoch, there in versions if epoch not in gone]
    for state in states:
        at = sees(parents, state, chosen)
        before = at is not None and dict(versions)[at]
        after = sees(parents, state, [epoch for epoch, _ in left])
        assert (after if after is not None and dict(versions)[after] else None) == (
            at if before else None
        )
    for epoch, there in left:
        if 0 < epoch < head and there:
            assert any(sees(parents, s, chosen) == epoch for s in states)
    # Taken out one by one, oldest first, nothing shows through meanwhile.
    for most in range(len(gone)):
        part = [epoch for epoch, _ in versions if epoch not in gone[:most]]
        for state in states:
            at, now = sees(parents, state, chosen), sees(parents, state, part)
            shown = at if at is not None and dict(versions)[at] else None
            assert (now if now is not None and dict(versions)[now] else None) == shown


def test_epochs_that_never_were_stay() -> None:
    kept = Kept({1: 0, 2: 1}, {0, 2})
    assert kept.superfluous([(7, True), (2, True), (1, True)], 3) == [1]
