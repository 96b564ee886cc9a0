"""Claude Code on a real mount: what it does is kept, and code and conversation go back.

Each test says what the model answers, runs the real program, and looks at what counts: files,
checkpoints, and the conversation that the model is sent when a copy goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cowfs.client.places import is_stopped
from tests.clients.agents import KEY, SECONDS, Claude, OldClaude
from tests.clients.conftest import StartClaude, at_work
from tests.clients.looking import (
    GO_ON,
    WENT_ON,
    contents,
    continued,
    copied,
    prompts,
    sessions,
    the_session,
)
from tests.clients.protocols import Call, Said
from tests.clients.stub import Fail, Request, Script, call
from tests.clients.terminal import CLEAR_LINE, ENTER, ESCAPE, UP, in_terminal

MAKE = "make-the-things"
HELP = "ask-a-helper"
TASK = "helper-task"
BREAK = "break-the-things"
LAST = "the-last-thing"

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
MADE_ONLY = [Said("user", MAKE), Said("model", "Things are made.")]
HELPED = [
    Said("user", HELP),
    Said("call", "Agent"),
    Said("result", "Agent"),
    Said("model", "The helper is done."),
]
"""The second one: what the helper says itself is not part of it."""


def helper(prompt: str, *, background: bool = False) -> Call:
    return call(
        "Agent",
        description="a job",
        prompt=f"{prompt} please",
        subagent_type="general-purpose",
        run_in_background=background,
    )


def bash(command: str) -> Call:
    return call("Bash", command=command, description="work")


@dataclass(frozen=True)
class Story:
    """Three prompts in one session. states: the files before each prompt, and at the end.
    prompts: what was asked to the id of the checkpoint before it."""

    claude: Claude
    session: str
    states: list[dict[str, str]]
    prompts: dict[str, str]


def before_the_prompt(request: Request) -> list[Any]:
    """All messages that the model was sent before the prompt that it had to answer, as they are."""
    messages: list[Any] = list(request.body["messages"])
    while request.rule not in json.dumps(messages.pop()):
        pass
    return messages


def calls(request: Request) -> dict[str, str]:
    """The tools that the model has called, and the id of the last call of each."""
    return {
        block["name"]: block["id"]
        for message in request.body["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_use"
    }


def wait_for(fifo: Path) -> None:
    """Until something was written into a named pipe."""
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([fd], [], [], SECONDS)[0], "nothing was written in time"
    finally:
        os.close(fd)


def transcripts(claude: Claude) -> dict[Path, bytes]:
    """All conversations that Claude has."""
    return {path: path.read_bytes() for path in claude.config.glob("projects/*/*.jsonl")}


# -- a story, told by both versions of the program ------------------------------------------------


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


# -- what can happen to a session -----------------------------------------------------------------


ONE_MADE = [
    Said("user", MAKE),
    Said("call", "Bash"),
    Said("result", "Bash"),
    Said("model", "One is made."),
]


def killed(claude: StartClaude, top: Path) -> tuple[Claude, str]:
    """Claude has done one turn, and was killed while a command of the next one ran."""
    fifo = top / "fifo"
    os.mkfifo(fifo)
    script: Script = {
        MAKE: [bash("echo 1 > one"), "One is made."],
        BREAK: [bash(f"echo half > one; echo > {fifo}; sleep 1000"), "never said"],
        HELP: ["I helped."],
        GO_ON: [WENT_ON],
    }
    agent = claude(script)
    agent.run(f"{MAKE} now")
    session = the_session(agent)["id"]
    with agent.started(agent.words(f"{BREAK} now", session)) as running:
        wait_for(fifo)
        assert the_session(agent)["state"] == "active"
        os.kill(running.pid, signal.SIGKILL)
        running.finish()
    assert the_session(agent)["state"] == "interrupted"
    return agent, session


def test_killed_in_the_middle(claude: StartClaude, tmp_path: Path) -> None:
    agent, session = killed(claude, tmp_path)
    history = continued(agent, session, agent.cowfs.ok("resume"))
    # Claude Code itself closes the call that has no result.
    assert history[:6] == [*ONE_MADE, ("user", BREAK), ("call", "Bash")]
    assert ("model", "never said") not in history
    assert contents(agent.top)["one"] == "half\n"
    assert the_session(agent)["state"] == "ended"


def test_killed_and_resumed_with_the_files(claude: StartClaude, tmp_path: Path) -> None:
    agent, session = killed(claude, tmp_path)
    answer = agent.cowfs.ok("resume", session, "--code")
    assert contents(agent.top)["one"] == "1\n"
    assert copied(agent, answer["conversation"]) == ONE_MADE


def test_the_next_session_is_told_of_one_that_was_killed(
    claude: StartClaude, tmp_path: Path
) -> None:
    agent, session = killed(claude, tmp_path)
    agent.run(f"{HELP} now")
    assert "was interrupted" in agent.stub.last(HELP)
    assert f"`cowfs resume {session}`" in agent.stub.last(HELP)


def test_after_a_compaction(claude: StartClaude) -> None:
    script: Script = {
        MAKE: ["Things are made."],
        HELP: ["I helped.", "A summary."],
        BREAK: ["All is broken."],
        GO_ON: [WENT_ON],
    }
    agent = claude(script)
    agent.run(f"{MAKE} now")
    session = the_session(agent)["id"]
    agent.run(f"{HELP} now", session=session)
    before = prompts(agent)[f"{HELP} now"]
    agent.run("/compact", session=session)
    agent.run(f"{BREAK} now", session=session)
    original = agent.stub.last(BREAK)
    assert "A summary." in original
    after = agent.cowfs.ok("restore", prompts(agent)[f"{BREAK} now"], "--conversation")
    history = copied(agent, after["conversation"])
    assert history == agent.stub.history(original)[:-1]
    copy = agent.stub.last(GO_ON)
    assert before_the_prompt(copy) == before_the_prompt(original)
    assert "A summary." in copy

    whole = agent.cowfs.ok("restore", before, "--conversation")
    assert copied(agent, whole["conversation"]) == [("user", MAKE), ("model", "Things are made.")]
    assert "A summary." not in agent.stub.last(GO_ON)


def test_two_helpers_at_once(claude: StartClaude) -> None:
    script: Script = {
        HELP: [[helper("first-task"), helper("second-task")], "Both are done."],
        "first-task": [bash("echo 1 > first"), "First."],
        "second-task": [bash("echo 2 > second"), "Second."],
        GO_ON: [WENT_ON],
    }
    agent = claude(script)
    agent.run(f"{HELP} now")
    assert contents(agent.top).items() >= {"first": "1\n", "second": "2\n"}.items()
    main = the_session(agent)
    assert [row["state"] for row in main["subagents"]] == ["ended", "ended"]
    agent.run(f"{BREAK} now", session=main["id"])
    checkpoint = prompts(agent)[f"{BREAK} now"]
    answer = agent.cowfs.ok("restore", checkpoint, "--conversation")
    assert copied(agent, answer["conversation"]) == [
        ("user", HELP),
        *[("call", "Agent")] * 2,
        *[("result", "Agent")] * 2,
        ("model", "Both are done."),
    ]


def test_a_helper_in_the_background(claude: StartClaude) -> None:
    script: Script = {
        HELP: [helper("slow-task", background=True), "It works.", "It has ended."],
        "slow-task": [bash("echo 1 > slow"), "Slowly."],
    }
    agent = claude(script)
    agent.run(f"{HELP} now")
    assert contents(agent.top)["slow"] == "1\n"
    # Its end is said in the user's name, but no user has asked for anything.
    assert list(prompts(agent)) == [f"{HELP} now"]
    (below,) = the_session(agent)["subagents"]
    assert below["state"] == "ended"


def test_an_error_of_the_server(claude: StartClaude) -> None:
    agent = claude({MAKE: [Fail(529)], GO_ON: [WENT_ON]})
    agent.run(f"{MAKE} now", code=1)
    assert list(prompts(agent)) == [f"{MAKE} now"]
    assert the_session(agent)["state"] == "ended"


# -- in a terminal --------------------------------------------------------------------------------


def test_interrupted_and_rewound_by_its_own_menu(claude: StartClaude, tmp_path: Path) -> None:
    """Esc, then /rewind: Claude Code says neither to a hook, and writes nothing at a /rewind."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script: Script = {
        MAKE: ["Things are made."],
        BREAK: [bash(f"echo half > half; echo > {fifo}; sleep 1000"), "never said"],
        HELP: ["I helped."],
        LAST: ["That was all."],
        GO_ON: [WENT_ON],
    }
    agent = claude(script)
    agent.answer_first_questions()
    with in_terminal(agent, agent.allowed) as terminal:
        terminal.until("accept edits on")

        def ask(prompt: str) -> None:
            terminal.type(f"{prompt} now")
            terminal.press(ENTER)

        ask(MAKE)
        terminal.until("Things are made.", "s · done")
        ask(BREAK)
        wait_for(fifo)
        terminal.press(ESCAPE)
        terminal.until("Interrupted")
        ask(HELP)
        terminal.until("I helped.", "s · done")
        terminal.type("/rewind", "Restore earlier code, conversation")
        terminal.press(ENTER)
        terminal.until("(current)")
        terminal.type(UP, f"❯ {HELP} now")
        terminal.press(ENTER)
        terminal.until("Restore conversation")
        terminal.press(ENTER)
        terminal.until(f"❯ {HELP} now")
        terminal.type(CLEAR_LINE, "to paste deleted text")
        ask(LAST)
        terminal.until("That was all.", "s · done")
        terminal.type("/exit", "Exit the")
        terminal.press(ENTER)
        assert terminal.finish() == 0
    found = prompts(agent)
    assert list(found) == [f"{prompt} now" for prompt in (MAKE, BREAK, HELP, LAST)]
    whole = {prompt: agent.stub.history(agent.stub.last(prompt))[:-1] for prompt in (HELP, LAST)}
    assert whole[LAST] == whole[HELP]  # it was rewound
    assert whole[HELP][:4] == [*MADE_ONLY, ("user", BREAK), ("call", "Bash")]
    # What Claude Code itself adds when it resumes where the user was the last one to say something.
    added = ("model", "No response requested.")
    for prompt in (HELP, LAST):
        answer = agent.cowfs.ok("restore", found[f"{prompt} now"], "--conversation")
        assert copied(agent, answer["conversation"]) == [*whole[prompt], added]


# -- an agent goes on whatever becomes of cowfs ---------------------------------------------------


def test_without_the_command(claude: StartClaude) -> None:
    agent = claude({MAKE: [bash("echo 1 > one"), "One is made."]})
    (agent.place.programs / "cowfs").unlink()
    assert agent.run(f"{MAKE} now") == "One is made."
    assert contents(agent.top)["one"] == "1\n"


def test_not_mounted(claude: StartClaude) -> None:
    agent = claude({MAKE: [bash("echo 1 > one"), "One is made."], HELP: ["I helped."]})
    agent.cowfs.ok("unmount", agent.top, cwd=agent.cowfs.top)
    session = str(uuid.uuid4())
    assert agent.run(f"{MAKE} now", "--session-id", session) == "One is made."
    assert contents(agent.top)["one"] == "1\n"
    assert agent.run(f"{HELP} now", session=session) == "I helped."
    # The user is told, once in a session; the log says when.
    log = Path(agent.cowfs.env["XDG_DATA_HOME"], "cowfs", "hooks.log").read_text()
    (line,) = log.splitlines()
    assert "is not mounted" in line
    assert session in line


def test_a_stopped_daemon(claude: StartClaude) -> None:
    """It is stopped while a command runs, until the model hears of the command's end."""
    heard = []

    def go_on() -> str:
        heard.append(is_stopped(pid))
        os.kill(pid, signal.SIGCONT)
        return "One is made."

    agent = claude({MAKE: [bash("echo 1 > one; kill -STOP $(cat ../pid)"), go_on]})
    ((_, store),) = agent.cowfs.mounts()
    pid = agent.cowfs.pid(store)
    (agent.cowfs.top / "pid").write_text(str(pid))
    try:
        assert agent.run(f"{MAKE} now") == "One is made."
    finally:
        os.kill(pid, signal.SIGCONT)
    assert heard == [True]
    assert contents(agent.top)["one"] == "1\n"


# -- the plugin -----------------------------------------------------------------------------------


PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "claude-code"


def test_the_plugin_is_valid(claude: StartClaude) -> None:
    claude({}).execute(["plugin", "validate", "--strict", str(PLUGIN)])


def test_the_plugin_does_what_the_settings_do(claude: StartClaude) -> None:
    note = "before-the-storm"
    agent = claude(
        {
            MAKE: [bash("rm readme"), "Things are made."],
            HELP: [bash("rm src/main.c"), "I helped."],
            note: [bash(f"cowfs checkpoint -m {note}"), "It is kept."],
        }
    )
    plugin = ["--plugin-dir", str(PLUGIN)]
    # With both of them everything comes twice, and counts once.
    agent.run(f"{MAKE} now", *plugin)
    session = the_session(agent)["id"]
    assert json.dumps(agent.stub.last(MAKE).body).count("deleted: readme") == 1
    agent.cowfs.ok("hooks", "uninstall", "claude", "--project", "--yes")
    agent.run(f"{HELP} now", *plugin, session=session)
    assert "deleted: src/main.c" in agent.stub.last(HELP)
    agent.run(f"/cowfs:checkpoint {note}", *plugin, session=session)
    assert list(prompts(agent)) == [f"{MAKE} now", f"{HELP} now", f"/cowfs:checkpoint {note}"]
    (kept,) = agent.cowfs.ok("log", "--kind", "manual")["checkpoints"]
    assert (kept["message"], kept["session"]) == (note, session)
