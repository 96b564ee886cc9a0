"""What is known of a workspace that lives in the machine: told again from what it reported.

The host and the machine choose the same calls from the same seeds, so only numbers and words go
between them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash import mounts
from tests.crash.kills import base_tree
from tests.crash.knowledge import Knowledge, Progress
from tests.crash.local import make_base
from tests.crash.states import Call, State, Tree, first_state

_OPERATIONS, _ROUNDS = 30, 3
"""Of one life: about a hundred calls, a few seconds in an emulated machine."""


@dataclass
class Life:
    """One life: the seed of its calls, and what it reported, in order."""

    seed: int
    reports: list[list[Any]] = field(default_factory=list)


def base_as_made() -> Tree:
    """What the base shows before the first life."""
    with tempfile.TemporaryDirectory() as place:
        make_base(Path(place) / "base")
        return base_tree(Path(place) / "base")


def calls_of(state: State, seed: int) -> list[Call]:
    """What a life does that began with a state."""
    return mounts.calls_of(state, seed, in_place=True, operations=_OPERATIONS, rounds=_ROUNDS)


def progress_of(state: State, seed: int, ids: dict[int, str]) -> Progress:
    """To follow such a life."""
    return Progress(state, calls_of(state, seed), ids, paged=True)


def told(base: Tree, lives: list[Life]) -> Knowledge:
    """What is known after some lives.

    A life that found its state reports ["start", which of the possible ones]; then come the
    reports of `Progress`.
    """
    known = Knowledge([first_state(base)])
    for life in lives:
        progress = None
        for report in life.reports:
            if report[0] == "start":
                progress = progress_of(known.states[report[1]], life.seed, known.ids)
            elif progress is not None:
                progress.note(report)
        if progress is not None:
            known = progress.knowledge()
    return known


def to_json(lives: list[Life]) -> list[Any]:
    """As JSON can carry it."""
    return [[life.seed, life.reports] for life in lives]


def from_json(value: list[Any]) -> list[Life]:
    """The reverse of `to_json`."""
    return [Life(seed, reports) for seed, reports in value]
