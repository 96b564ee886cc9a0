"""Copies of conversations against the checklist of what the program goes on with."""

from __future__ import annotations

import json

import pytest

from cowfs.agents.base import MAIN, START, Agent, Copy, NotCopyableError
from cowfs.agents.claude.adapter import adapter
from cowfs.agents.cutting import LEFT_OUT
from tests.agents.claude.checklist import calls, check, entries, objects
from tests.agents.claude.conversations import (
    BESIDE,
    CWD,
    NEW,
    OLD,
    PROJECTS,
    SESSION,
    TRANSCRIPT,
    Transcript,
    call,
    parallel,
    say,
    subagent,
    think,
)

CLAUDE: Agent = adapter("claude")


def copy(files: dict[str, bytes], leaf: str = "", cwd: str = "", lies_at: str = TRANSCRIPT) -> Copy:
    """A copy that fulfils the checklist."""
    made = CLAUDE.copy(files, transcript=lies_at, cwd=cwd, session=SESSION, leaf=leaf)
    check(made, files, SESSION, leaf)
    return made


def main(made: Copy) -> bytes:
    return next(data for path, data in made.files.items() if f"{made.session}.jsonl" in path)


def last(made: Copy) -> str:
    """The last entry of a copy."""
    name: str = entries(main(made))[-1]["uuid"]
    return name


@pytest.mark.parametrize("version", [NEW, OLD])
def test_a_whole_conversation_is_copied_beside_itself(version: str) -> None:
    made, _ = parallel(version)
    result = copy({MAIN: made.data})
    assert list(result.files) == [f"{PROJECTS}/-w-my-app/{result.session}.jsonl"]
    assert (result.cwd, result.notes) == (CWD, ())
    assert last(result) == made.at
    assert sum(len(calls(entry)) for entry in entries(main(result))) == 2
    again = copy({MAIN: made.data})
    assert again.session != result.session


def test_what_must_not_change_stays_as_it_was_written() -> None:
    made = Transcript()
    made.prompt("one")
    said = f"{BESIDE}/tool-results/r.txt {SESSION}"
    written = (
        f'{{"parentUuid":"{made.at}","type":"assistant","n":123456789012345678901234567890,'
        '"f":1.10e+02,"message":{"id":"m","type":"message","role":"assistant","content":['
        '{"type":"thinking","thinking":"\\u00e9\\ud83d\\ude00 \u00e9","signature":"Eq\\/=="},'
        f'{{"type":"text","text":"{said}"}}],"usage":{{"x":-0.0,"y":1E5}}}},'
        f'"sessionId":"{SESSION}","odd":{{"b":1,"a":2}},"uuid":"aaaa"}}'
    )
    made.raw(written.encode())
    result = copy({MAIN: made.data, "tool-results/r.txt": b"x"})
    line = next(line for line in main(result).split(b"\n") if b'"aaaa"' in line).decode()
    origin = f',"forkedFrom":{{"sessionId":"{SESSION}","messageUuid":"aaaa"}}}}'
    wanted = written.replace(f'"sessionId":"{SESSION}"', f'"sessionId":"{result.session}"')
    assert line == wanted[:-1] + origin


def test_a_copy_of_a_copy_names_the_copy() -> None:
    made, _ = parallel()
    once = copy({MAIN: made.data})
    again = CLAUDE.copy({MAIN: main(once)}, transcript=TRANSCRIPT, cwd="", session=once.session)
    check(again, {MAIN: main(once)}, once.session)


def test_before_its_first_prompt_there_is_nothing_to_copy() -> None:
    made = Transcript()
    made.meta("queue-operation", operation="enqueue", content="one")
    made.attach("hook_success", content="a hook printed this")
    made.user("a caveat", isMeta=True)
    for files in ({MAIN: made.data}, {MAIN: b""}, {}):
        with pytest.raises(NotCopyableError):
            copy(files)


def test_a_call_under_way_is_left_out_and_said() -> None:
    made = Transcript()
    made.turn("one", "First.")
    made.prompt("two")
    prompt = made.at
    made.answer(think("Which?"), call("Bash", command="x"))
    result = copy({MAIN: made.data})
    assert last(result) == prompt, "a thought alone is no answer"
    assert result.notes == (LEFT_OUT,)


def test_what_was_said_before_a_call_under_way_stays() -> None:
    made = Transcript()
    made.prompt("one")
    made.answer(
        think("Hm."), say("I run it."), call("Bash", command="x"), call("Bash", command="y")
    )
    assert entries(main(copy({MAIN: made.data})))[-1]["message"]["content"] == [say("I run it.")]


def test_calls_at_once_stay_or_go_together() -> None:
    made = Transcript()
    made.prompt("one")
    made.answer(say("Both."))
    said = made.at
    one, two = made.answer(call("Bash", command="x"), call("Bash", command="y"))
    made.result(one)
    assert last(copy({MAIN: made.data})) == said
    done = made.result(two)
    assert last(copy({MAIN: made.data})) == done


def test_of_calls_one_after_the_other_those_that_are_done_stay() -> None:
    made = Transcript()
    made.prompt("one")
    done = made.result(made.answer(say("First."), call("Bash", command="x"))[0])
    made.answer(call("Bash", command="y"))
    assert last(copy({MAIN: made.data})) == done


def test_calls_of_one_answer_that_ran_one_after_the_other_stay_as_far_as_they_are_done() -> None:
    made = Transcript()
    made.prompt("one")
    one, two = made.answer(call("Agent", prompt="x"), call("Bash", command="y"))
    last_call = made.lines.pop()
    done = made.result(one)
    assert last(copy({MAIN: made.data})) == done
    made.raw(last_call)
    assert last(copy({MAIN: made.data})) == done
    done = made.result(two)
    assert last(copy({MAIN: made.data})) == done


def test_a_task_that_ended_in_the_background_begins_a_turn_as_a_prompt_does() -> None:
    """Also where nothing was answered yet: the call before it will have no result."""
    made = Transcript()
    made.prompt("one")
    made.answer(call("Bash", command="x"))
    told = made.user("<task-notification>a</task-notification>")
    assert last(copy({MAIN: made.data})) == told


def test_a_call_that_died_with_the_program_does_not_end_the_conversation() -> None:
    made = Transcript()
    made.prompt("one")
    made.answer(call("Bash", command="x"))
    end = made.turn("two", "Second.")
    assert last(copy({MAIN: made.data})) == end
    made.answer(call("Bash", command="y"))
    assert last(copy({MAIN: made.data})) == end


def test_an_answer_in_a_form_stays_with_its_result() -> None:
    made = Transcript()
    made.prompt("one")
    result = made.result(made.answer(call("StructuredOutput", x=1))[0])
    output = made.attach("structured_output", data={"x": 1})
    made.prompt("two")
    cut = CLAUDE.copy(
        {MAIN: made.data}, transcript=TRANSCRIPT, cwd="", session=SESSION, leaf=result
    )
    assert last(cut) == output


def test_after_a_compaction_the_names_of_entries_and_what_names_them_stay() -> None:
    made = Transcript()
    made.turn("one", "First.")
    kept = made.turn("two", "Second.")
    made.compact([kept])
    end = made.turn("three", "Third.")
    result = copy({MAIN: made.data})
    assert last(result) == end
    (boundary,) = [e for e in entries(main(result)) if e.get("subtype") == "compact_boundary"]
    assert boundary["compactMetadata"]["preservedMessages"]["uuids"] == [kept]
    assert boundary["parentUuid"] is None
    assert boundary["logicalParentUuid"] == kept


def test_before_a_compaction_is_done_the_conversation_is_whole() -> None:
    made = Transcript()
    end = made.turn("one", "First.")
    made.compact()
    made.lines.pop()
    assert last(copy({MAIN: made.data})) == end, "a boundary alone would hide all before it"


def test_a_copy_ends_at_the_leaf_that_a_rewind_went_back_to() -> None:
    made = Transcript()
    back = made.turn("one", "First.")
    made.turn("wrong", "Wrong.")
    assert last(copy({MAIN: made.data}, leaf=back)) == back
    with pytest.raises(NotCopyableError):
        copy({MAIN: made.data}, leaf=START)
    with pytest.raises(NotCopyableError):
        CLAUDE.copy(
            {MAIN: made.data}, transcript=TRANSCRIPT, cwd="", session=SESSION, leaf="no such"
        )


def test_a_branch_that_was_left_stays_in_the_file() -> None:
    made = Transcript()
    back = made.turn("one", "First.")
    made.turn("wrong", "Wrong.")
    made.at = back
    end = made.turn("right", "Right.")
    result = copy({MAIN: made.data})
    assert last(result) == end
    assert b"Wrong." in main(result)


def test_lines_of_the_original_alone_are_left_out() -> None:
    made = Transcript()
    end = made.turn("one", "First.")
    made.meta("file-history-snapshot", messageId=end, snapshot={})
    made.meta("worktree-state", worktreeSession={})
    made.meta("summary", summary="of another", leafUuid="no such entry")
    made.meta("summary", summary="of this", leafUuid=end)
    made.meta("ai-title", aiTitle="about one")
    made.meta("custom-title", customTitle="mine")
    made.meta("content-replacement", replacements=[{"toolUseId": "t", "replacement": "x"}])
    made.entry("unheard-of", x=1)
    made.meta("brand-new", x=1)
    result = copy({MAIN: made.data})
    found = objects(main(result))
    assert [line["type"] for line in found if "parentUuid" not in line] == [
        "permission-mode",
        "summary",
        "ai-title",
        "custom-title",
        "content-replacement",
    ]
    assert [line["customTitle"] for line in found if "customTitle" in line] == ["mine (copy)"]
    assert found[-1]["type"] == "unheard-of", "an entry of an unknown type is one all the same"
    assert any("brand-new" in note for note in result.notes)


def test_lines_of_a_sub_agent_in_the_transcript_are_none_of_it() -> None:
    made = Transcript(OLD)
    made.subagent = "warmup"
    made.user("Warmup")
    made.subagent, made.at = "", None
    made.turn("one", "First.")
    assert entries(main(copy({MAIN: made.data})))[0]["message"]["content"] == "one"


def test_two_sessions_are_not_one_member_of_a_team() -> None:
    made = Transcript()
    made.prompt("one", slug="a-plan", teamName="t", agentName="n")
    (entry, *_) = [e for e in entries(main(copy({MAIN: made.data}))) if e["type"] == "user"]
    assert not {"slug", "teamName", "agentName"} & set(entry)


def test_sub_agents_and_their_results_come_along() -> None:
    made = Transcript()
    made.prompt("one")
    (one,) = made.answer(call("Agent", prompt="do the small thing"))
    files = {**subagent(one[1]), "tool-results/deep/r.txt": b"large \xff"}
    made.result(one)
    made.answer(say("Done."))
    files = {MAIN: made.data, **files}
    result = copy(files)
    beside = f"{PROJECTS}/-w-my-app/{result.session}"
    assert set(result.files) == {
        f"{beside}.jsonl",
        f"{beside}/subagents/agent-a1b2c3d.jsonl",
        f"{beside}/subagents/agent-a1b2c3d.meta.json",
        f"{beside}/tool-results/deep/r.txt",
    }
    assert result.files[f"{beside}/tool-results/deep/r.txt"] == b"large \xff"


def test_sub_agents_of_calls_that_are_left_out_are_left_out() -> None:
    made = Transcript()
    made.turn("zero", "Zeroth.")
    made.prompt("one")
    (one,) = made.answer(call("Agent", prompt="do the small thing"))
    outer = subagent(one[1], "outer")
    (inner_call,) = calls(entries_aside(outer["subagents/agent-outer.jsonl"])[1])
    files = {
        MAIN: made.data,
        **subagent(inner_call, "inner"),
        **outer,
        "subagents/agent-acompact-1.jsonl": b"",
        "../outside": b"",
        "subagents/../../outside": b"",
    }
    beside = {name.split("/", 5)[-1] for name in copy(files).files}
    assert len(beside) == 2
    assert any(name.endswith("agent-acompact-1.jsonl") for name in beside)
    made.result(one)
    names = copy({**files, MAIN: made.data}).files
    assert sum("inner" in name for name in names) == sum("outer" in name for name in names) == 2


def entries_aside(data: bytes) -> list[dict[str, object]]:
    return [line for line in objects(data) if line["type"] in ("user", "assistant")][1:]


def test_paths_of_results_lead_to_the_copys_own() -> None:
    where = f"{BESIDE}/tool-results/r.txt"
    other = f"{BESIDE}/tool-results/gone.txt"
    made = Transcript()
    made.prompt(f"look at {where}x")
    (one,) = made.answer(call("Bash", command=f"cat {where}"))
    said = f"<persisted-output>\nFull output saved to: {where}\n\nPreview:\n{other} /x{where}\n"
    made.result(one, said, toolUseResult={"persistedOutputPath": where, "stdout": SESSION})
    files = {MAIN: made.data, "tool-results/r.txt": b"all of it"}
    result = CLAUDE.copy(files, transcript=TRANSCRIPT, cwd="", session=SESSION)
    moved = where.replace(SESSION, result.session)
    by_kind = {e["type"]: e for e in entries(main(result)) if e["type"] != "attachment"}
    assert by_kind["assistant"]["message"]["content"][0]["input"] == {"command": f"cat {where}"}
    answered = by_kind["user"]
    assert answered["message"]["content"][0]["content"] == said.replace(f": {where}", f": {moved}")
    assert answered["toolUseResult"] == {"persistedOutputPath": moved, "stdout": SESSION}
    assert f"look at {where}x".encode() in main(result)


def test_a_broken_link_is_mended_and_said() -> None:
    made = Transcript()
    end = made.turn("one", "First.")
    made.at = "00000000-0000-4000-8000-000000000000"
    made.turn("two", "Second.")
    result = copy({MAIN: made.data})
    (prompt,) = [e for e in entries(main(result)) if e.get("message", {}).get("content") == "two"]
    assert prompt["parentUuid"] == end
    assert any("missing" in note for note in result.notes)


def test_an_entry_written_before_its_parent_needs_it() -> None:
    made = Transcript(OLD)
    made.turn("one", "First.")
    made.turn("two", "Second.")
    made.lines[-2:] = reversed(made.lines[-2:])
    assert last(copy({MAIN: made.data})) == json.loads(made.lines[-1])["uuid"]
    early = json.loads(made.lines[-2])["uuid"]
    assert last(copy({MAIN: made.data}, leaf=early)) == json.loads(made.lines[1])["uuid"]


def test_lines_that_make_no_sense_are_left_out_and_said() -> None:
    made, _ = parallel()
    made.raw(b"\xff\xfe")
    result = copy({MAIN: made.data + b'{"not":"finished"'})
    assert result.notes == ("lines that make no sense are left out: 1",)
