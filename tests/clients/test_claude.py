"""Claude Code on a real mount tells a story: what it does is kept, code and conversation go back.

The tests say what the model answers, run the real program, and look at what counts: files,
checkpoints, and the conversation that the model is sent when a copy goes on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.agents import KEY, Claude, OldClaude
from tests.clients.conftest import at_work
from tests.clients.looking import GO_ON, WENT_ON, contents, copied, prompts, sessions, the_session
from tests.clients.protocols import Said
from tests.clients.scenes import BREAK, HELP, MAKE, TASK, bash, before_the_prompt, calls, helper
from tests.clients.stub import Script, call

MADE = [
    Said("user", MAKE),
    Said("model", "I make things."),
    Said("call", "Write"),
    Said("call", "Bash"),
    Said("result", "Write"),
    Said("result", "Bash"),
    Said("model", "Things are made."),
]
"""The first turn of the story, as the model is sent it."""
HELPED = [
    Said("user", HELP),
    Said("call", "Agent"),
    Said("result", "Agent"),
    Said("model", "The helper is done."),
]
"""The second one: what the helper says itself is not part of it."""


@dataclass(frozen=True)
class Story:
    """Three prompts in one session. states: the files before each prompt, and at the end.
    prompts: what was asked to the id of the checkpoint before it."""

    claude: Claude
    session: str
    states: list[dict[str, str]]
    prompts: dict[str, str]


def transcripts(claude: Claude) -> dict[Path, bytes]:
    """All conversations that Claude has."""
    return {path: path.read_bytes() for path in claude.config.glob("projects/*/*.jsonl")}


@contextlib.contextmanager
def told(kind: type[Claude], top: Path) -> Iterator[Story]:
    script: Script = {
        MAKE: [
            [
                "I make things.",
                call("Write", file_path=str(top / "project" / "new"), content="new\n"),
                bash("rm src/main.c; mv readme README; sed -i s/n/N/ new"),
            ],
            "Things are made.",
        ],
        HELP: [helper(TASK), "The helper is done."],
        TASK: [bash("echo helped > helped"), "I helped."],
        BREAK: [bash("rm -rf src README; echo broken > new"), "All is broken."],
        GO_ON: [bash("echo more > more"), WENT_ON],
    }
    with at_work(kind, top, script) as claude:
        states = [contents(claude.top)]
        session = ""
        for prompt in (MAKE, HELP, BREAK):
            claude.run(f"{prompt} now", session=session)
            session = session or the_session(claude)["id"]
            states.append(contents(claude.top))
        yield Story(claude, session, states, prompts(claude))


@pytest.fixture(scope="module", params=[Claude, OldClaude], ids=["new", "old"])
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    with told(request.param, tmp_path_factory.mktemp("story").resolve()) as story:
        yield story


def test_each_prompt_has_a_checkpoint_before_it(story: Story) -> None:
    before, made, helped, broken = story.states
    assert before == {"readme": "one\ntwo\n", "src/main.c": "int main;\n"}
    assert made == {"new": "New\n", "README": "one\ntwo\n"}
    assert helped == {**made, "helped": "helped\n"}
    assert broken == {"new": "broken\n", "helped": "helped\n"}
    assert list(story.prompts) == [f"{prompt} now" for prompt in (MAKE, HELP, BREAK)]
    cowfs = story.claude.cowfs
    try:
        for checkpoint, state in zip(story.prompts.values(), story.states[:3], strict=True):
            cowfs.ok("restore", checkpoint, "--code")
            assert contents(story.claude.top) == state
    finally:
        for _ in story.prompts:
            cowfs.ok("undo")
    assert contents(story.claude.top) == broken


def test_the_model_is_told_what_a_command_changed(story: Story) -> None:
    last = story.claude.stub.last(MAKE)
    assert "modified: new\ndeleted: src/main.c\nrenamed: readme -> README" in last
    # Of Write there is nothing to tell.
    assert "created: new" not in last
    assert "created: helped" in story.claude.stub.last(TASK)
    assert "created: helped" not in story.claude.stub.last(HELP)


def test_each_change_is_of_who_made_it(story: Story) -> None:
    """Of the session, the sub-agent and the call of a tool."""
    cowfs, stub = story.claude.cowfs, story.claude.stub
    (row,) = [row for row in sessions(story.claude) if row["id"] == story.session]
    (below,) = row["subagents"]
    of_helper = cowfs.ok("changes", "--by", below["id"])["changes"]
    assert [change["paths"] for change in of_helper] == [[{"path": "helped", "to": None}]]
    made = {
        (pair["path"], change["operation"]): change["process"]
        for change in cowfs.ok("changes", "--by", story.session)["changes"]
        for pair in change["paths"]
    }
    made = {key: (process["session"], process["tool"]) for key, process in made.items()}
    tools, tools_of_helper = calls(stub.last(MAKE)), calls(stub.last(TASK))
    assert made["src/main.c", "removed"] == (story.session, tools["Bash"])
    assert made["readme", "renamed"] == (story.session, tools["Bash"])
    assert made["helped", "made"] == (below["id"], tools_of_helper["Bash"])
    # Write makes a file with a name of its own first.
    assert (story.session, tools["Write"]) in made.values()


def test_what_is_kept_with_a_checkpoint(story: Story) -> None:
    shown = story.claude.cowfs.ok("show", story.prompts[f"{BREAK} now"], "--session")
    assert shown["session"]["id"] == story.session
    assert shown["conversation"]["prompts"] == 2
    assert shown["processes"][0]["command"][0] == story.claude.program
    assert Path(shown["cwd"]) == story.claude.top
    assert shown["environment"]["ANTHROPIC_BASE_URL"] == story.claude.stub.url
    assert "ANTHROPIC_API_KEY" in shown["hidden"]
    assert KEY not in json.dumps(shown)


def test_code_only(story: Story) -> None:
    claude = story.claude
    conversations, known = transcripts(claude), sessions(claude)
    answer = claude.cowfs.ok("restore", story.prompts[f"{HELP} now"], "--code")
    assert answer["conversation"] is None
    assert contents(claude.top) == story.states[1]
    assert transcripts(claude) == conversations
    assert sessions(claude) == known


def test_conversation_only(story: Story) -> None:
    claude = story.claude
    files, conversations = contents(claude.top), transcripts(claude)
    checkpoint = story.prompts[f"{BREAK} now"]
    answer = claude.cowfs.ok("restore", checkpoint, "--conversation")
    assert contents(claude.top) == files
    assert transcripts(claude).items() >= conversations.items()
    assert copied(claude, answer["conversation"]) == [*MADE, *HELPED]
    original, copy = claude.stub.requests_of(BREAK)[0], claude.stub.requests_of(GO_ON)[-2]
    assert before_the_prompt(copy) == before_the_prompt(original)
    assert transcripts(claude).items() >= conversations.items()
    assert contents(claude.top) == {**files, "more": "more\n"}


def test_both(story: Story) -> None:
    claude = story.claude
    checkpoint = story.prompts[f"{HELP} now"]
    answer = claude.cowfs.ok("restore", checkpoint, "--both")
    assert contents(claude.top) == story.states[1]
    assert copied(claude, answer["conversation"]) == MADE
    original, copy = claude.stub.requests_of(HELP)[0], claude.stub.requests_of(GO_ON)[-2]
    assert before_the_prompt(copy) == before_the_prompt(original)
    assert contents(claude.top) == {**story.states[1], "more": "more\n"}
