"""Conversations with an agent, in no format: what is said in them, for the modules `writing` of
each agent to write as that agent does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True, slots=True)
class Answer:
    """The model says something."""

    text: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The model calls tools, all at once. order: in which they come back; how long it is says how
    many."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What a user asks, and what is done then. The last step is an answer."""

    prompt: str
    steps: tuple[Answer | Calls, ...]


Talk = tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """Something that the model is told when the conversation goes on. kind: `user`, `model`,
    `call`, `output`. what: the text, or the id of the call."""

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Writing:
    """How an agent writes. write: a talk as its transcript. heard: what the model would be told
    by the bytes of a transcript. copied: the same of a copy's file, where that has another
    format. session: id of the conversation in it. transcript: where it lies."""

    name: str
    session: str
    transcript: str
    write: Callable[[Talk], bytes]
    heard: Callable[[bytes], list[Token]]
    copied: Callable[[bytes], list[Token]]


def goes_on_from(tokens: Iterable[Token]) -> list[Token]:
    """The longest beginning with which an agent can go on: every call has its output, and the
    model has had the last word, or its call has."""
    kept: list[Token] = []
    best = 0
    open_calls: set[str] = set()
    for token in tokens:
        kept.append(token)
        if token.kind == "call":
            open_calls.add(token.what)
        elif token.kind == "output":
            open_calls.discard(token.what)
        if token.kind in ("model", "output") and not open_calls:
            best = len(kept)
    return kept[:best]


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_STEPS = st.lists(
    st.one_of(
        st.builds(Answer, _TEXTS),
        st.integers(1, 3).flatmap(
            lambda many: st.builds(Calls, st.permutations(range(many)).map(tuple))
        ),
    ),
    max_size=3,
)


def _talk(drawn: list[tuple[str, list[Answer | Calls], str]]) -> Talk:
    """Each text is made to be the only one of its kind."""
    turns = []
    for number, (prompt, steps, last) in enumerate(drawn, 1):
        done = [
            Answer(f"{step.text} m{number}.{at}") if isinstance(step, Answer) else step
            for at, step in enumerate([*steps, Answer(last)])
        ]
        turns.append(Said(f"{prompt} p{number}", tuple(done)))
    return tuple(turns)


TALKS = st.lists(st.tuples(_TEXTS, _STEPS, _TEXTS), min_size=1, max_size=4).map(_talk)
