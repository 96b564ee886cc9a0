"""What is recorded at the events of a session, without a mount."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents import events
from cowfs.agents.base import START
from cowfs.errors import UsageError
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import ContextRecord, SessionRecord
from cowfs.service import config
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading
from cowfs.service.sessions.recording import Event, Outcome, Recorder, parse
from cowfs.service.sessions.registry import Registry
from tests.support.volumes import AUTHOR, Rig


class Recording:
    """A recorder on a volume, and what the store says then."""

    def __init__(self, rig: Rig, transcript: Path) -> None:
        self.rig = rig
        self.transcript = transcript
        self.operation = threading.RLock()
        self.recorder = self._fresh()

    def _fresh(self) -> Recorder:
        engine = self.rig.engine
        engine.mountpoint = lambda: "/w"  # type: ignore[method-assign]
        return Recorder(engine, self.operation, Registry(engine))

    def restart(self) -> None:
        """Another life of the daemon."""
        self.rig.reopen()
        self.recorder = self._fresh()

    def __call__(self, event: str, **fields: Any) -> Outcome:
        known = {"agent": "claude", "session": "s1", "cwd": "/w", "pid": os.getpid()}
        known |= {"transcript": str(self.transcript)}
        return self.recorder.record(AUTHOR, parse({**known, "event": event, **fields}))

    def configure(self, **settings: list[str]) -> None:
        """Settings of [sessions], or of [checkpoints] for `profile`."""
        for name, words in settings.items():
            section = "checkpoints" if name == "profile" else "sessions"
            config.change(self.rig.store, f"{section}.{name}", words)

    def checkpoints(self) -> list[CheckpointRecord]:
        """All but the first, oldest first."""
        self.rig.volume.sync()
        return all_checkpoints(self.rig.volume.reader)[1:]

    def kinds(self) -> list[str]:
        return [record.kind for record in self.checkpoints()]

    def session(self, name: str = "s1") -> SessionRecord:
        self.rig.volume.sync()
        found = reading.session(self.rig.volume.reader, name)
        assert found is not None
        return found

    def context(self, checkpoint: CheckpointRecord | None) -> ContextRecord:
        self.rig.volume.sync()
        assert checkpoint is not None
        found = reading.context(self.rig.volume.reader, checkpoint.id)
        assert found is not None
        return found


@pytest.fixture
def record(volume: Rig, tmp_path: Path) -> Recording:
    transcript = tmp_path / "s1.jsonl"
    transcript.write_text("")
    return Recording(volume, transcript)


def entry(kind: str, uuid: str, parent: str | None, text: str, **more: Any) -> str:
    """A line of a conversation of Claude Code."""
    content: Any = text
    if kind == "assistant":
        content = [{"type": "text", "text": text}]
    message = {"role": kind, "content": content, "id": f"m-{uuid}", "type": "message"}
    return (
        json.dumps(
            {
                "type": kind,
                "uuid": uuid,
                "parentUuid": parent,
                "sessionId": "s1",
                "isSidechain": False,
                "cwd": "/w",
                "message": message,
                **more,
            }
        )
        + "\n"
    )


# -- prompts --------------------------------------------------------------------------------------


def test_a_prompt_makes_a_checkpoint_before_it(record: Recording) -> None:
    record.rig.save(b"a", b"1")
    done = record("prompt", prompt="  fix it\nplease", prompt_id="p1")
    record.rig.save(b"a", b"2")
    assert done.made
    assert done.checkpoint is not None
    assert (done.checkpoint.kind, done.checkpoint.session) == ("prompt", "s1")
    assert done.checkpoint.message.partition("\n")[0] == "fix it"
    found = record.context(done.checkpoint)
    assert (found.session, found.event) == ("s1", events.PROMPT)
    assert (found.prompt, found.prompt_id) == ("  fix it\nplease", "p1")
    assert record.session().prompt_id == "p1"
    record.rig.restore(done.checkpoint)
    assert record.rig.read(b"a") == b"1"


def test_a_prompt_makes_one_though_nothing_changed(record: Recording) -> None:
    for number in range(3):
        assert record("prompt", prompt="go on", prompt_id=f"p{number}").made
    assert record.kinds() == ["prompt"] * 3


def test_a_prompt_that_is_reported_twice_makes_one(record: Recording) -> None:
    first = record("prompt", prompt="go", prompt_id="p1")
    record.rig.save(b"a", b"1")
    second = record("prompt", prompt="go", prompt_id="p1")
    assert (second.made, second.repeated) == (False, True)
    assert second.checkpoint == first.checkpoint
    assert record.kinds() == ["prompt"]


def test_without_ids_only_the_same_one_at_once_is_a_repetition(record: Recording) -> None:
    assert record("prompt", prompt="go on").made
    again = record("prompt", prompt="go on")
    assert (again.made, again.repeated) == (False, True)
    record("turn-end", last_answer="done")
    assert record("prompt", prompt="go on").made, "there was an answer in between"
    record.rig.save(b"a", b"1")
    assert record("prompt", prompt="go on").made, "something was changed in between"
    assert record.kinds() == ["prompt"] * 3


def test_two_hooks_at_the_same_time_make_one(record: Recording) -> None:
    done: list[Outcome] = []
    together = threading.Barrier(2)

    def report() -> None:
        together.wait()
        done.append(record("prompt", prompt="go", prompt_id="p1"))

    record.rig.volume.sync()
    threads = [threading.Thread(target=report) for _ in range(2)]
    with record.operation:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.made for outcome in done) == [False, True]
    assert record.kinds() == ["prompt"]


def test_a_prompt_waits_for_an_operation_only_so_long(record: Recording) -> None:
    taken, leave = threading.Event(), threading.Event()

    def operate() -> None:
        with record.operation:
            taken.set()
            leave.wait()

    other = threading.Thread(target=operate)
    other.start()
    try:
        taken.wait()
        done = record("prompt", prompt="go", prompt_id="p1", wait=0.0)
    finally:
        leave.set()
        other.join()
    assert (done.made, done.checkpoint) == (False, None)
    assert done.missed
    assert record.session().prompt == "go", "that much is known all the same"
    assert record("prompt", prompt="go", prompt_id="p1").made, "it was not done, so it is no repeat"


def test_no_checkpoint_when_the_agent_has_gone_on(record: Recording) -> None:
    record.rig.save(b"a", b"1")
    for name, subagent in (("prompt", ""), ("tool-start", "a1"), ("subagent-start", "a1")):
        done = record(name, prompt_id="p1", tool_id="t1", subagent=subagent, wait=0)
        assert (done.checkpoint, done.missed) == (None, "it took too long"), name
    assert record("turn-end", wait=0).made, "that is not the state before anything"
    assert record.kinds() == ["turn"]


def test_a_prompt_of_a_sub_agent_is_no_users_prompt(record: Recording) -> None:
    record("prompt", prompt="mine", prompt_id="p1")
    record("prompt", prompt="its", prompt_id="p1", subagent="a1", subagent_kind="Explore")
    assert record.kinds() == ["prompt"]
    assert record.session().prompt == "mine"


# -- tools ----------------------------------------------------------------------------------------


def tool(record: Recording, work: Callable[[], object], **fields: Any) -> dict[str, Any] | None:
    """A tool call that does something: what is told of it."""
    call = {"tool": "Bash", "tool_id": "t1", "tool_text": "make", "prompt_id": "p1", **fields}
    record("tool-start", **call)
    work()
    done = record("tool-end", **call)
    return done.changes.to_json() if done.changes else None


def test_a_tool_call_makes_one_only_if_something_changed(record: Recording) -> None:
    record("prompt", prompt="go", prompt_id="p1")
    assert not record("tool-start", tool="Bash", tool_id="t1", tool_text="ls").made
    record("tool-end", tool="Bash", tool_id="t1")
    record.rig.save(b"a", b"1")
    done = record("tool-start", tool="Bash", tool_id="t2", tool_text="rm a")
    assert done.made
    assert done.checkpoint is not None
    assert done.checkpoint.message == "before Bash: rm a"
    assert record.context(done.checkpoint).tool.id == "t2"
    assert record.kinds() == ["prompt", "tool"]


def test_what_a_command_changed_is_told(record: Recording) -> None:
    rig = record.rig
    for name in (b"changed", b"gone", b"moved", b"modes", b"same"):
        rig.save(name, name)
    record("prompt", prompt="go", prompt_id="p1")

    def work() -> None:
        rig.save(b"changed", b"2")
        rig.save(b"same", b"same")
        rig.unlink(b"gone")
        rig.rename(b"moved", b"there")
        rig.chmod(b"modes", 0o600)
        rig.mkdir(b"out")
        rig.save(b"out/one", b"1")
        rig.save(b"out/two", b"2")
        rig.save(b"new", b"1")
        rig.save(b"temporary", b"1")
        rig.unlink(b"temporary")

    told = tool(record, work)
    assert told is not None
    assert told["since"] == record.checkpoints()[-1].id
    assert told["created"] == [{"path": "new", "inside": 0}, {"path": "out/", "inside": 2}]
    assert told["modified"] == [{"path": "changed", "inside": 0}]
    assert told["deleted"] == [{"path": "gone", "inside": 0}]
    assert told["attributes"] == [{"path": "modes", "inside": 0}]
    assert told["renamed"] == [{"path": "there", "old_path": "moved"}]
    assert (told["aside"], told["more"], told["many"], told["others"]) == ({}, 0, False, 0)


def test_nothing_is_told_when_nothing_changed(record: Recording) -> None:
    record.rig.save(b"a", b"1")
    assert tool(record, lambda: None) is None
    assert tool(record, lambda: record.rig.save(b"a", b"1"), tool_id="t2") is None


def test_a_repeated_end_is_told_as_such(record: Recording) -> None:
    assert tool(record, lambda: record.rig.save(b"a", b"1")) is not None
    again = record("tool-end", tool="Bash", tool_id="t1", tool_text="make", prompt_id="p1")
    assert again.repeated


def test_an_end_without_a_beginning_says_nothing(record: Recording) -> None:
    record.rig.save(b"a", b"1")
    assert record("tool-end", tool="Bash", tool_id="t1").changes is None


def test_the_file_that_an_edit_names_is_no_news(record: Recording) -> None:
    rig = record.rig
    edit = {"tool": "Write", "tool_text": "/w/src/new/a.py", "tool_path": "/w/src/new/a.py"}

    def write() -> None:
        rig.mkdir(b"src")
        rig.mkdir(b"src/new")
        rig.save(b"src/new/a.py", b"1")

    assert tool(record, write, **edit) is None

    def write_more() -> None:
        rig.save(b"src/new/a.py", b"2")
        rig.save(b"src/new/b.py", b"2")

    told = tool(record, write_more, tool_id="t2", **edit)
    assert told is not None
    assert told["created"] == [{"path": "src/new/b.py", "inside": 0}]
    assert told["modified"] == []


def test_git_and_volatile_paths_are_only_counted(record: Recording) -> None:
    rig = record.rig
    for path in (b".git", b"lib", b"lib/node_modules", b"build"):
        rig.mkdir(path)
    config.change(rig.store, "volatile.paths", ["node_modules", "build"])

    def work() -> None:
        for path in (b".git/index", b".git/HEAD", b"lib/node_modules/x", b"build/y", b"z"):
            rig.save(path, b"1")

    told = tool(record, work)
    assert told is not None
    assert told["created"] == [{"path": "z", "inside": 0}]
    assert told["aside"] == {".git": 2, "lib/node_modules": 1, "build": 1}


def test_no_more_is_listed_than_anybody_reads(record: Recording) -> None:
    rig = record.rig

    def work() -> None:
        for number in range(50):
            rig.save(b"file-%02d" % number, b"1")

    told = tool(record, work)
    assert told is not None
    assert len(told["created"]) + told["more"] == 50
    assert 0 < len(told["created"]) <= 20


def test_much_too_much_is_not_compared(record: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cowfs.service.sessions.marks._MOST_TOUCHED", 10)

    def work() -> None:
        for number in range(11):
            record.rig.save(b"%d" % number, b"1")

    told = tool(record, work)
    assert told is not None
    assert told["many"] is True
    assert told["created"] == []


def test_calls_at_the_same_time_are_told_to_be_so(record: Recording) -> None:
    one = {"tool": "Bash", "tool_id": "t1", "tool_text": "one"}
    two = {"tool": "Bash", "tool_id": "t2", "tool_text": "two"}
    record("tool-start", **one)
    record("tool-start", **two)
    record.rig.save(b"a", b"1")
    first, second = record("tool-end", **one).changes, record("tool-end", **two).changes
    assert first is not None
    assert second is not None
    assert (first.others, second.others) == (1, 1)
    assert first.created == second.created == [{"path": "a", "inside": 0}]


def test_a_restore_in_a_tool_call_is_told(record: Recording) -> None:
    rig = record.rig
    rig.save(b"a", b"1")
    before = record("prompt", prompt="go", prompt_id="p1").checkpoint
    assert before is not None
    rig.save(b"a", b"2")
    rig.save(b"b", b"2")
    told = tool(record, lambda: rig.restore(before), tool_text="cowfs restore")
    assert told is not None
    assert told["modified"] == [{"path": "a", "inside": 0}]
    assert told["deleted"] == [{"path": "b", "inside": 0}]


def test_what_was_broken_off_is_not_told_at_the_next_prompt(record: Recording) -> None:
    call = {"tool": "Bash", "tool_id": "t1", "tool_text": "sleep"}
    record("prompt", prompt="one", prompt_id="p1")
    record("tool-start", **call)
    record.rig.save(b"a", b"1")
    record("prompt", prompt="two", prompt_id="p2")
    assert record("tool-end", **call).changes is None


# -- turns ----------------------------------------------------------------------------------------


def test_the_end_of_a_turn_waits_for_its_answer(record: Recording) -> None:
    record.transcript.write_text(
        entry("user", "u1", None, "go", promptId="p1") + entry("assistant", "a1", "u1", "All done.")
    )
    record.rig.save(b"a", b"1")
    done = record("turn-end", prompt_id="p1", last_answer="All done.", background=2)
    assert done.made
    found = record.context(done.checkpoint)
    assert found.complete
    assert found.background == 2
    assert reading.conversation(record.rig.volume.reader, found) == {
        "main": record.transcript.read_bytes()
    }


def test_title_and_version_are_what_the_conversation_says(record: Recording) -> None:
    record.transcript.write_text(
        entry("user", "u1", None, "go", version="2.1.332")
        + json.dumps({"type": "custom-title", "customTitle": "The tax", "sessionId": "s1"})
        + "\n"
    )
    record("turn-end", prompt_id="p1")
    assert (record.session().title, record.session().version) == ("The tax", "2.1.332")


def test_an_answer_that_never_comes(record: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cowfs.service.sessions.turns._LONGEST_WAIT", 0.0)
    record.transcript.write_text(entry("user", "u1", None, "go", promptId="p1"))
    record.rig.save(b"a", b"1")
    done = record("turn-end", prompt_id="p1", last_answer="All done.")
    assert not record.context(done.checkpoint).complete


def test_a_turn_without_changes_makes_none(record: Recording) -> None:
    record("prompt", prompt="go", prompt_id="p1")
    done = record("turn-end", prompt_id="p1")
    assert not done.made
    assert record.kinds() == ["prompt"]


def test_a_prompt_after_a_rewind_hangs_from_an_earlier_entry(record: Recording) -> None:
    lines = (
        entry("user", "u1", None, "one", promptId="p1")
        + entry("assistant", "a1", "u1", "One.")
        + entry("user", "u2", "a1", "two", promptId="p2")
        + entry("assistant", "a2", "u2", "Two.")
    )
    record.transcript.write_text(lines)
    done = record("prompt", prompt="three", prompt_id="p3")
    assert record.context(done.checkpoint).leaf == ""
    lines += entry("user", "u3", "a1", "three", promptId="p3")
    lines += entry("assistant", "a3", "u3", "Three.")
    record.transcript.write_text(lines)
    record("turn-end", prompt_id="p3", last_answer="Three.")
    assert record.context(done.checkpoint).leaf == "a1"


def test_a_prompt_after_a_rewind_to_the_beginning(record: Recording) -> None:
    lines = entry("user", "u1", None, "one", promptId="p1") + entry("assistant", "a1", "u1", "One.")
    record.transcript.write_text(lines)
    done = record("prompt", prompt="again", prompt_id="p2")
    lines += entry("user", "u2", None, "again", promptId="p2")
    lines += entry("assistant", "a2", "u2", "Two.")
    record.transcript.write_text(lines)
    record("prompt", prompt="next", prompt_id="p3")  # the turn was broken off: no end of it comes
    assert record.context(done.checkpoint).leaf == START


def test_a_prompt_right_after_a_turn_that_was_broken_off(record: Recording) -> None:
    """The last lines of that turn are not there when the hook of the prompt runs."""
    lines = entry("user", "u1", None, "one", promptId="p1") + entry("assistant", "a1", "u1", "One.")
    record.transcript.write_text(lines)
    done = record("prompt", prompt="two", prompt_id="p2")
    assert len(record.context(done.checkpoint).marks) == 1
    lines += entry("user", "late", "a1", "[interrupted]", promptId="p1")
    first = len(lines)
    lines += entry("user", "u2", "late", "two", promptId="p2")
    lines += entry("assistant", "a2", "u2", "Two.")
    record.transcript.write_text(lines)
    record("turn-end", prompt_id="p2", last_answer="Two.")
    context = record.context(done.checkpoint)
    assert context.leaf == "late"
    assert context.marks[0].length >= first


def test_an_ordinary_prompt_hangs_from_the_last_entry(record: Recording) -> None:
    lines = entry("user", "u1", None, "one", promptId="p1") + entry("assistant", "a1", "u1", "One.")
    record.transcript.write_text(lines)
    done = record("prompt", prompt="two", prompt_id="p2")
    lines += entry("user", "u2", "a1", "two", promptId="p2")
    lines += entry("assistant", "a2", "u2", "Two.")
    record.transcript.write_text(lines)
    record("turn-end", prompt_id="p2", last_answer="Two.")
    assert record.context(done.checkpoint).leaf == ""


# -- sub-agents and sessions ----------------------------------------------------------------------


def test_a_sub_agent(record: Recording) -> None:
    record("prompt", prompt="go", prompt_id="p1")
    whose = {"subagent": "a1", "subagent_kind": "Explore", "prompt_id": "p1"}
    record("subagent-start", **whose, subagent_transcript="/t/agent-a1.jsonl")
    found = record.session("s1/a1")
    assert (found.parent, found.kind, found.state) == ("s1", "Explore", "active")
    assert found.transcript == b"/t/agent-a1.jsonl"
    record.rig.save(b"a", b"1")
    done = record("tool-start", tool="Bash", tool_id="t1", tool_text="x", **whose)
    assert done.checkpoint is not None
    assert done.checkpoint.session == "s1/a1"
    record.rig.save(b"a", b"2")
    done = record("subagent-end", **whose)
    assert done.checkpoint is not None
    assert done.checkpoint.message == "after Explore a1"
    assert record.session("s1/a1").state == "ended"
    record.rig.save(b"a", b"3")
    assert record("subagent-end", **whose).repeated
    assert record.kinds() == ["prompt", "tool", "agent"]


def test_the_end_of_what_is_no_sub_agent_leaves_no_record(record: Recording) -> None:
    record("prompt", prompt="go", prompt_id="p1")
    record("subagent-end", subagent="bash-7", prompt_id="p2")
    record.rig.volume.sync()
    assert reading.session(record.rig.volume.reader, "s1/bash-7") is None
    assert record.session().prompt == "go"


def test_a_session_from_its_beginning_to_its_end(record: Recording) -> None:
    done = record("session-start", source="startup", title="The tax")
    assert done.checkpoint is None
    record("subagent-start", subagent="a1", subagent_kind="Explore")
    assert record.session().state == "active"
    assert record.session().title == "The tax"
    record.rig.save(b"a", b"1")
    done = record("session-end", reason="logout")
    assert done.made
    found = record.session()
    assert (found.state, found.reason) == ("ended", "logout")
    assert record.session("s1/a1").state == "ended"
    record("session-start", source="resume")
    assert record.session().state == "active"


def gone() -> int:
    """The pid of a process that has ended."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_an_interrupted_session_is_told_to_the_next_one(record: Recording) -> None:
    record("session-start", session="old", pid=gone())
    record("prompt", session="old", pid=0, prompt="long work", prompt_id="p1")
    record.restart()
    told = record("session-start", session="new", source="startup").interrupted
    assert [(row.id, row.prompt) for row in told] == [("old", "long work")]
    record("prompt", session="new", prompt="other work", prompt_id="p2")
    assert record("session-start", session="third").interrupted == (), "it is no news any more"


def test_one_that_goes_on_is_not_told(record: Recording) -> None:
    record("session-start", session="old", pid=gone())
    assert record("session-start", session="old").interrupted == ()


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "own", "of_subagents"),
    [
        ("exploratory", ["prompt", "tool", "turn"], ["agent", "tool", "agent"]),
        ("batch", ["prompt", "turn"], []),
        ("parallel", ["prompt", "turn"], ["agent", "tool", "agent"]),
        ("manual", [], []),
    ],
)
def test_profiles(record: Recording, profile: str, own: list[str], of_subagents: list[str]) -> None:
    record.configure(profile=[profile])

    def kinds(*moments: str, **fields: Any) -> list[str]:
        before = len(record.checkpoints())
        for number, moment in enumerate(moments):
            record.rig.save(b"a", f"{before} {number}".encode())
            record(moment, prompt_id="p1", tool_id=f"t{before}", **fields)
        return record.kinds()[before:]

    assert kinds("prompt", "tool-start", "turn-end") == own
    moments = ("subagent-start", "tool-start", "subagent-end")
    assert kinds(*moments, subagent="a1", subagent_kind="K") == of_subagents


def test_a_policy_for_a_type_of_sub_agents(record: Recording) -> None:
    record.configure(types=["Explore=off", "builder=agent"])
    for kind, wanted in (("Explore", []), ("builder", ["agent"]), ("other", ["tool", "agent"])):
        before = len(record.checkpoints())
        whose = {"subagent": kind, "subagent_kind": kind}
        for number, event in enumerate(("tool-start", "subagent-end")):
            record.rig.save(b"a", f"{kind} {number}".encode())
            record(event, tool_id=f"t-{kind}", **whose)
        assert record.kinds()[before:] == wanted


def test_no_report_where_nobody_wants_one(record: Recording) -> None:
    record.configure(report=["off"])
    assert tool(record, lambda: record.rig.save(b"a", b"1")) is None


def test_changes_are_told_without_checkpoints_if_nothing_had_changed(record: Recording) -> None:
    record.configure(checkpoints=["prompt"])
    record("prompt", prompt="go", prompt_id="p1")
    assert tool(record, lambda: record.rig.save(b"a", b"1")) is not None
    assert tool(record, lambda: record.rig.save(b"a", b"2"), tool_id="t2") is None
    assert record.kinds() == ["prompt"]


# -- what is no event -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "lunch"},
        {"agent": "no agent"},
        {"session": ""},
        {"session": "a/b"},
        {"session": "x" * 300},
        {"prompt": 7},
        {"wait": -1},
        {"wait": 1e9},
        {"wait": float("nan")},
    ],
)
def test_what_is_no_event_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse({"agent": "claude", "session": "s", "event": "prompt", **fields})


def test_an_event_may_have_fields_that_nobody_knows() -> None:
    assert isinstance(
        parse({"agent": "claude", "session": "s", "event": "prompt", "later": [1]}), Event
    )
