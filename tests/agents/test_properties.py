"""What is true of every adapter, for any conversation, cut anywhere, and for any garbage."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cowfs import agents
from cowfs.agents.base import MAIN, Conversation, NotCopyableError
from cowfs.agents.cutting import LEFT_OUT
from cowfs.service.sessions.recording import Event
from tests.agents.codex.writing import CODEX
from tests.agents.gemini.writing import GEMINI
from tests.agents.generic.writing import GENERIC
from tests.agents.opencode.writing import OPENCODE
from tests.agents.talks import TALKS, Talk, Token, Writing, goes_on_from

WRITINGS = (CODEX, GEMINI, OPENCODE, GENERIC)
OTHERS = ("codex", "gemini", "opencode", "cursor", "generic")
anyone = pytest.mark.parametrize("writing", WRITINGS, ids=lambda writing: writing.name)
any_name = pytest.mark.parametrize("name", OTHERS)


def _copied(writing: Writing, data: bytes, leaf: str = "") -> tuple[Any, list[Token]] | None:
    """A copy and what the model would hear of it; None when there is none."""
    adapter = agents.get(writing.name)
    files = {MAIN: data}
    try:
        copy = adapter.copy(
            files, transcript=writing.transcript, cwd="/w", session=writing.session, leaf=leaf
        )
    except NotCopyableError:
        return None
    assert files == {MAIN: data}
    [(path, body)] = copy.files.items()
    assert path != writing.transcript
    assert os.path.dirname(path) == os.path.dirname(writing.transcript)
    assert copy.session != writing.session
    assert copy.session.encode() not in data
    assert body.endswith(b"\n")
    return copy, writing.copied(body)


@anyone
@given(talk=TALKS)
@settings(max_examples=25, deadline=None)
def test_a_conversation_is_read(writing: Writing, talk: Talk) -> None:
    read = agents.get(writing.name).read({MAIN: writing.write(talk)})
    assert [turn.prompt for turn in read.turns] == [said.prompt for said in talk]
    assert read.last_answer == talk[-1].steps[-1].text  # type: ignore[union-attr]
    assert agents.get(writing.name).complete({MAIN: writing.write(talk)}, read.last_answer)


@anyone
@given(talk=TALKS, share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_copy_at_any_cut(writing: Writing, talk: Talk, share: float) -> None:
    """Whole lines, no call without its output, all that can be kept, and ids of its own."""
    whole = writing.write(talk)
    data = whole[: whole.rfind(b"\n", 0, round(len(whole) * share)) + 1]
    expected = goes_on_from(writing.heard(data))
    made = _copied(writing, data)
    assert (made[1] if made is not None else []) == expected
    if made is not None:
        cut = goes_on_from(writing.heard(whole))
        assert cut[: len(expected)] == expected
        assert (LEFT_OUT in made[0].notes) == (writing.heard(data) != expected)


@anyone
@given(talk=TALKS)
@settings(max_examples=25, deadline=None)
def test_a_copy_of_all_has_all(writing: Writing, talk: Talk) -> None:
    whole = writing.write(talk)
    made = _copied(writing, whole)
    assert made is not None
    assert made[1] == writing.heard(whole)
    prompts = [token.what for token in made[1] if token.kind == "user"]
    assert prompts == [said.prompt for said in talk]


@anyone
@given(talk=TALKS)
@settings(max_examples=25, deadline=None)
def test_a_copy_up_to_before_each_prompt(writing: Writing, talk: Talk) -> None:
    """The leaf of a turn is where the one before it has ended."""
    whole = writing.write(talk)
    heard = writing.heard(whole)
    starts = [at for at, token in enumerate(heard) if token.kind == "user"]
    for turn, start in zip(agents.get(writing.name).read({MAIN: whole}).turns, starts, strict=True):
        made = _copied(writing, whole, turn.leaf)
        assert (made[1] if made is not None else []) == heard[:start]


@anyone
@given(talk=TALKS)
@settings(max_examples=20, deadline=None)
def test_a_copy_can_be_copied(writing: Writing, talk: Talk) -> None:
    made = _copied(writing, writing.write(talk))
    assert made is not None
    [(path, body)] = made[0].files.items()
    if not path.endswith(".jsonl"):
        return  # a file that is imported is no transcript
    adapter = agents.get(writing.name)
    again = adapter.copy({MAIN: body}, transcript=path, cwd="/w", session=made[0].session)
    [second] = again.files.values()
    assert writing.copied(second) == made[1]


# -- garbage ---------------------------------------------------------------------------------------

_FORMATS = """
    type payload id session_id sessionId role content text message messages info parts call_id
    session_meta event_msg response_item task_started task_complete user_message turn_id state
    status tool running completed assistant user gemini $set $rewindTo toolCalls result time
    created revert messageID removed num_turns thread_rolled_back cwd tool_calls item ordinal
"""
_WORDS = st.sampled_from(_FORMATS.split())
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)
_LINES = st.lists(_VALUES, max_size=6).map(
    lambda found: b"".join(msgspec.json.encode(value) + b"\n" for value in found)
)


@any_name
@given(data=st.binary(max_size=200) | _LINES, leaf=st.text(max_size=3))
@example(data=b"[" * 100_000 + b"\n", leaf="")
@example(data=b'{"info":' * 30_000 + b"1" + b"}" * 30_000 + b"\n", leaf="")
@settings(max_examples=80, deadline=None)
def test_garbage_never_fails(name: str, data: bytes, leaf: str) -> None:
    adapter = agents.get(name)
    files = {MAIN: data}
    assert isinstance(adapter.read(files), Conversation)
    assert isinstance(adapter.read({}), Conversation)
    assert adapter.complete(files, leaf) in (True, False)
    try:
        adapter.copy(files, transcript="/t/x.jsonl", cwd="", session="s", leaf=leaf)
    except NotCopyableError:
        pass


_FIELDS = """
    session_id session conversation_id hook_event_name event cwd transcript_path transcript prompt
    turn_id generation_id agent_id agent_type tool_name tool_input tool_use_id pid workspace_roots
    directories timestamp status reason last_assistant_message
"""
_SAID = st.dictionaries(st.sampled_from(_FIELDS.split()), _VALUES)


@any_name
@given(
    said=_SAID, event=st.text(max_size=5), context=st.text(max_size=9), notice=st.text(max_size=9)
)
@settings(max_examples=80, deadline=None)
def test_a_hook_never_fails(
    name: str, said: dict[str, Any], event: str, context: str, notice: str
) -> None:
    """What it makes of anything is an event as the daemon takes it, or nothing."""
    hooks = agents.hooks(name)
    for known in (event, *_names(name)):
        made = hooks.event(known, said, {})
        if made is not None:
            msgspec.convert({"agent": name, **made}, Event)
        msgspec.json.encode(hooks.answer(known, said, context, notice))
    assert all(isinstance(path, str) for path in hooks.directories(said, {}))


def _names(name: str) -> list[str]:
    hooks = agents.hooks(name)
    return list(getattr(hooks, "EVENTS", ())) or ["prompt", "tool-start", "session-end"]
