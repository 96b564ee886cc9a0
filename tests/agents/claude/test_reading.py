"""What a transcript says: the turns of the user that are part of the conversation, and the rest."""

from __future__ import annotations

import json

import pytest

from cowfs.agents.base import MAIN, START, Agent, Rewinding
from cowfs.agents.claude.adapter import adapter
from cowfs.agents.claude.transcript import joined, lines, members
from tests.agents.claude.conversations import CWD, NEW, OLD, Transcript, call, parallel, say

CLAUDE: Agent = adapter("claude")


@pytest.mark.parametrize("version", [NEW, OLD])
def test_a_conversation_has_its_turns_with_what_was_before_each(version: str) -> None:
    made = Transcript(version)
    first = made.prompt("one", isMeta=False)
    made.answer(say("First."))
    before = made.end()
    second = made.prompt("two")
    made.answer(say("Second."), say(" And more."))
    end = made.end()
    found = CLAUDE.read({MAIN: made.data})
    assert [(turn.prompt, turn.prompt_id, turn.leaf) for turn in found.turns] == [
        ("one", first, START),
        ("two", second, before),
    ]
    assert found.turns[0].time == "2026-11-22T10:00:01.000Z"
    assert (found.last_answer, found.leaf) == (" And more.", end)
    assert (found.cwd, found.version) == (CWD, version)


def test_calls_at_once_do_not_hide_a_turn() -> None:
    made, _ = parallel()
    made.turn("next", "Yes.")
    assert [turn.prompt for turn in CLAUDE.read({MAIN: made.data}).turns] == [
        "make two files",
        "next",
    ]


def test_what_was_rewound_is_no_turn_of_the_conversation() -> None:
    made = Transcript()
    back = made.turn("one", "First.")
    made.turn("wrong", "Wrong.")
    made.at = back
    made.turn("right", "Right.")
    found = CLAUDE.read({MAIN: made.data})
    assert [turn.prompt for turn in found.turns] == ["one", "right"]
    assert found.turns[1].leaf == back
    made.at = None
    made.turn("all anew", "Anew.")
    assert [(t.prompt, t.leaf) for t in CLAUDE.read({MAIN: made.data}).turns] == [
        ("all anew", START)
    ]


@pytest.mark.parametrize("hangs_from", ["summary", "kept"])
def test_turns_before_a_compaction_are_still_turns(hangs_from: str) -> None:
    made = Transcript()
    made.turn("one", "First.")
    kept = made.turn("two", "Second.")
    summary = made.compact([kept])
    made.at = summary if hangs_from == "summary" else kept
    made.turn("three", "Third.")
    found = CLAUDE.read({MAIN: made.data})
    assert [turn.prompt for turn in found.turns] == ["one", "two", "three"]
    assert found.turns[2].leaf == (summary if hangs_from == "summary" else kept)


def test_what_the_program_says_in_the_users_name_is_no_prompt() -> None:
    made = Transcript()
    made.turn("one", "First.")
    made.turn("<task-notification>\n<task-id>a1</task-id>\n</task-notification>", "It is done.")
    made.user("Base directory of the skill: /x", isMeta=True)
    made.user("<local-command-stdout>set</local-command-stdout>")
    made.user([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    made.user("<bash-input>ls</bash-input>")
    made.user(
        [
            {"type": "text", "text": "<system-reminder>\nbe good\n</system-reminder>"},
            {"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "base64", "data": "AA=="}},
        ]
    )
    made.user(
        "<command-message>review</command-message>\n<command-name>/review</command-name>\n"
        "<command-args>all of it</command-args>"
    )
    assert [turn.prompt for turn in CLAUDE.read({MAIN: made.data}).turns] == [
        "one",
        "look\n[image]",
        "/review all of it",
    ]


def test_a_command_of_the_program_itself_is_no_prompt() -> None:
    made = Transcript()
    made.turn("one", "First.")
    made.compact()
    made.user("<local-command-caveat>The command below was run", isMeta=True)
    made.user("<command-name>/compact</command-name>\n<command-args></command-args>")
    made.user("<local-command-stdout>Compacted</local-command-stdout>")
    end = made.attach("environment", text="Platform: linux")
    made.turn("two", "Second.")
    found = CLAUDE.read({MAIN: made.data})
    assert [(turn.prompt, turn.leaf) for turn in found.turns] == [("one", START), ("two", end)]


def test_a_title_of_the_user_counts_more_than_one_of_the_model() -> None:
    made = Transcript()
    end = made.turn("one", "First.")
    made.meta("summary", summary="of another conversation", leafUuid="no such entry")
    assert CLAUDE.read({MAIN: made.data}).title == ""
    made.meta("summary", summary="a summary", leafUuid=end)
    assert CLAUDE.read({MAIN: made.data}).title == "a summary"
    made.meta("ai-title", aiTitle="the model's")
    made.meta("custom-title", customTitle="mine")
    made.meta("custom-title", customTitle="mine, later")
    made.meta("ai-title", aiTitle="the model's, later")
    assert CLAUDE.read({MAIN: made.data}).title == "mine, later"


def test_what_makes_no_sense_is_passed_over() -> None:
    made = Transcript()
    made.raw(b"\xff\xfe no JSON")
    made.raw(b"[" * 100_000)
    made.raw(b'{"type":"user","uuid":7,"parentUuid":[],"message":3}')
    made.raw(b'{"type":"assistant","uuid":"t","parentUuid":{},"message":{"content":[{"type":[]}]}}')
    made.raw(b'{"type":"user","uuid":"u","parentUuid":"u","message":{"content":[null,{"x":1}]}}')
    made.at = None
    made.turn("one \u2028", "First.")
    made.raw(b"")
    data = made.data.replace("\u2028".encode(), b"\\ud83d")  # half of a character, as JSON allows
    data += b'{"type":"user","uuid":"not finished"'
    assert [turn.prompt for turn in CLAUDE.read({MAIN: data}).turns] == ["one ?"]
    check = CLAUDE.copy({MAIN: data}, transcript="/p/s.jsonl", cwd="", session="s")
    assert "lines that make no sense are left out: 2" in check.notes
    empty = CLAUDE.read({})
    assert (empty.turns, empty.leaf, empty.title) == ((), START, "")


def test_an_entry_whose_parent_is_missing_follows_the_one_before_it() -> None:
    made = Transcript()
    end = made.turn("one", "First.")
    made.at = "00000000-0000-4000-8000-000000000000"
    made.turn("two", "Second.")
    assert [turn.leaf for turn in CLAUDE.read({MAIN: made.data}).turns] == [START, end]


def test_the_last_answer_is_waited_for() -> None:
    made = Transcript()
    made.turn("one", "ok")
    assert CLAUDE.complete({MAIN: made.data}, " ok\n")
    made.prompt("two")
    assert not CLAUDE.complete({MAIN: made.data}, "ok"), "that was the answer of the turn before"
    one, *_ = made.answer(say("I look."), call("Bash", command="ls"))
    assert not CLAUDE.complete({MAIN: made.data}, "Found it.\n\nDone.")
    made.result(one)
    made.answer(say("Found it."))
    assert not CLAUDE.complete({MAIN: made.data}, "Found it.\n\nDone.")
    made.answer(say("Found it."), say("Done."))
    made.end()
    assert CLAUDE.complete({MAIN: made.data}, "Found it.\n\nDone.")
    assert CLAUDE.complete({MAIN: made.data}, "Done.")
    assert CLAUDE.complete({MAIN: made.data[len(made.data) // 2 :]}, "Done."), "its end is enough"
    assert CLAUDE.complete({}, ""), "nothing was said"
    assert not CLAUDE.complete({}, "Done.")


def test_a_rewind_is_found_out_from_the_prompts_line() -> None:
    made = Transcript()
    back = made.turn("one", "First.")
    made.turn("wrong", "Wrong.")
    before = made.data
    made.at = back
    made.attach("hook_success", content="a hook's words")
    asked = made.prompt("right")
    made.answer(say("Right."))
    after = made.data[len(before) :]
    assert isinstance(CLAUDE, Rewinding)
    assert CLAUDE.settled(before, after, asked) == back
    assert CLAUDE.settled(before[-3000:], after, asked) == back, "the end of the file is enough"
    assert CLAUDE.settled(before, b"", asked) == CLAUDE.settled(before, after, "another") == ""
    assert CLAUDE.settled(before, after, "") == ""
    made.at = None
    before = made.data
    asked = made.prompt("all anew")
    assert CLAUDE.settled(before, made.data[len(before) :], asked) == START


def test_a_prompt_that_follows_the_last_entry_was_not_rewound() -> None:
    made = Transcript()
    first = made.prompt("one")
    made.answer(say("First."))
    assert isinstance(CLAUDE, Rewinding)
    assert CLAUDE.settled(b"", made.data, first) == ""
    made.end()
    before = made.data
    made.attach("hook_success", content="a hook's words")
    asked = made.prompt("two")
    assert CLAUDE.settled(before, made.data[len(before) :], asked) == ""
    before = made.data
    made.user("[Tool call interrupted]", isMeta=True, promptId="three")
    made.answer(say("No response requested."))
    made.user("three", promptId="three")
    assert CLAUDE.settled(before, made.data[len(before) :], "three") == ""
    before = made.data
    made.compact()
    asked = made.prompt("four")
    assert CLAUDE.settled(before, made.data[len(before) :], asked) == ""


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"a":1}',
        b'{"n":123456789012345678901234567890,"f":1.10e+02,"z":-0.0,"b":[1, 2 ,{"x" :null}]}',
        b'{"\\u0061":"\\ud83d\\ude00 \xc3\xa9 \\/ \\u00e9","a":"again"}',
        b'{"invalid":"\xff\xfe"}',
    ],
)
def test_a_line_is_put_together_as_it_was(line: bytes) -> None:
    assert joined(members(line)) == line


@pytest.mark.parametrize(
    "line", [b'{"a":1', b'{"a":1}}', b'{"a" 1}', b"{1:2}", b"[]", b"7", b'{"a":1,}']
)
def test_what_is_no_object_is_no_line(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        members(line)
    assert lines(line + b"\n") == ([], 1)


def test_spaces_around_members_do_not_matter() -> None:
    found = members(b' { "a" : [ 1 ] , "b":2 }\r')
    assert json.loads(joined(found)) == {"a": [1], "b": 2}
