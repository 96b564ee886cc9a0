"""Whatever was said and wherever it is cut, a copy fulfils the checklist and has all it can."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cowfs.agents.base import MAIN, Agent, NotCopyableError, Rewinding
from cowfs.agents.claude.adapter import adapter
from tests.agents.claude.checklist import check, entries, longest
from tests.agents.claude.conversations import (
    NEW,
    OLD,
    SESSION,
    TRANSCRIPT,
    Block,
    Transcript,
    call,
    say,
    subagent,
    think,
)

CLAUDE: Agent = adapter("claude")


@dataclass
class Conversation:
    """One that is written at random. ends: entries that a turn ended with."""

    made: Transcript
    files: dict[str, bytes] = field(default_factory=dict)
    ends: list[str | None] = field(default_factory=lambda: [None])

    def turn(self, draw: st.DrawFn) -> None:
        self.made.prompt(draw(st.sampled_from(["go", "look", "<b>\u00e9\u2028"])))
        for _ in range(draw(st.integers(0, 2))):
            if not self.step(draw):
                return
        self.made.answer(*draw(BLOCKS), say("Done."))
        self.ends.append(self.made.end())

    def step(self, draw: st.DrawFn) -> bool:
        """Calls at once; whether all of them were answered."""
        asked = draw(st.lists(st.sampled_from(["Bash", "Write", "Agent"]), min_size=1, max_size=3))
        calls = self.made.answer(*draw(BLOCKS), *(call(name, x=1) for name in asked))
        for number, (name, one) in enumerate(zip(asked, calls, strict=True)):
            if name == "Agent":
                self.files |= subagent(one[1], f"a{len(self.files)}{number}")
        order = draw(st.permutations(calls))
        answered = draw(st.sampled_from([len(calls)] * 4 + [len(calls) - 1, 0]))
        for one in order[:answered]:
            self.made.result(one, draw(st.sampled_from(["ok", [say("ok")]])))
            if draw(st.booleans()):
                self.made.attach("hook_success", content="x")
        return answered == len(calls)

    def other(self, draw: st.DrawFn) -> None:
        made = self.made
        what = draw(st.integers(0, 5))
        if what == 0:
            made.at = draw(st.sampled_from(self.ends))
        elif what == 1 and made.at:
            made.compact(draw(st.sampled_from([None, [made.at]])))
        elif what == 2:
            made.meta(draw(st.sampled_from(["ai-title", "mode", "summary", "new"])), leafUuid="?")
        elif what == 3:
            made.raw(draw(st.sampled_from([b"", b"{", b"null", b"\xff{}", b'{"a":1}'])))
        elif what == 4:
            made.turn("<task-notification>a</task-notification>", "So it is.")
        else:
            made.user("in the user's name", isMeta=True)


BLOCKS: st.SearchStrategy[list[Block]] = st.lists(
    st.sampled_from([say("I go."), think("Hm.")]), max_size=3
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    found = Conversation(Transcript(draw(st.sampled_from([NEW, OLD]))))
    for _ in range(draw(st.integers(1, 5))):
        found.turn(draw) if draw(st.booleans()) else found.other(draw)
    return found


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_copy_at_any_cut_fulfils_the_checklist(data: st.DataObject) -> None:
    conversation = data.draw(conversations())
    written = conversation.made.lines
    cut = data.draw(st.integers(0, len(written)), "cut")
    main = b"".join(line + b"\n" for line in written[:cut])
    files = {MAIN: main, **conversation.files}
    names = [entry["uuid"] for entry in entries(main)]
    leaf = data.draw(st.sampled_from(["", *names]), "leaf")
    try:
        made = CLAUDE.copy(files, transcript=TRANSCRIPT, cwd="", session=SESSION, leaf=leaf)
    except NotCopyableError:
        assert not longest(entries(main), leaf)
    else:
        check(made, files, SESSION, leaf)
    found = CLAUDE.read(files)
    assert {turn.leaf for turn in found.turns} <= {"start", *names}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def spoil(draw: st.DrawFn, at: Any) -> None:
    """Put something else in the place of a value that lies anywhere in this one."""
    key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    if at[key] and isinstance(at[key], (dict, list)) and draw(st.booleans()):
        spoil(draw, at[key])
    else:
        at[key] = draw(JSON)


@st.composite
def spoiled(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """A file of these lines, some of which say something else now."""
    lines = list(lines)
    for number in draw(st.lists(st.sampled_from(range(len(lines))), max_size=6)) if lines else ():
        try:
            value = json.loads(lines[number])
        except ValueError:
            continue
        if value:
            spoil(draw, value)
            lines[number] = json.dumps(value).encode()
    return b"".join(line + b"\n" for line in lines)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_that_stands_in_a_file_is_an_error(data: st.DataObject) -> None:
    made = data.draw(conversations())
    main = data.draw(spoiled(made.made.lines))
    files = {**made.files, MAIN: main}
    if made.files:
        name = data.draw(st.sampled_from(sorted(made.files)))
        files[name] = data.draw(spoiled(made.files[name].split(b"\n")))
    CLAUDE.read(files)
    CLAUDE.complete(files, "something")
    assert isinstance(CLAUDE, Rewinding)
    CLAUDE.settled(main[:2000], main[2000:], made.made.prompt("again"))
    try:
        CLAUDE.copy(files, transcript=TRANSCRIPT, cwd="", session=SESSION)
    except NotCopyableError:
        pass
