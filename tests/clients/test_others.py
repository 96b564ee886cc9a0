"""Codex, Gemini CLI and OpenCode on a real mount: the same story for each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.agents import Agent, Codex, Gemini, OpenCode
from tests.clients.conftest import at_work
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
from tests.clients.protocols import Call
from tests.clients.scenes import wait_for
from tests.clients.stub import Script, call

MAKE = "make-the-things"
BREAK = "break-the-things"


@dataclass(frozen=True)
class Tools:
    """How the tools of an agent are called: by a command; by a path and the file's content."""

    shell: Callable[[str], Call]
    write: Callable[[str, str], Call]


TOOLS = {
    Codex: Tools(
        lambda command: call("exec_command", cmd=command),
        lambda path, text: call("exec_command", cmd=f"printf %s '{text}' > {path}"),
    ),
    Gemini: Tools(
        lambda command: call("run_shell_command", command=command, description="work"),
        lambda path, text: call("write_file", file_path=path, content=text),
    ),
    OpenCode: Tools(
        lambda command: call("bash", command=command, description="work"),
        lambda path, text: call("write", filePath=path, content=text),
    ),
}


@dataclass(frozen=True)
class Story:
    """Two prompts in one session; states: the files before each, and at the end."""

    agent: Agent
    states: list[dict[str, str]]
    prompts: dict[str, str]


@pytest.fixture(scope="module", params=TOOLS, ids=lambda kind: kind.name)
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    kind: type[Agent] = request.param
    tools = TOOLS[kind]
    top = tmp_path_factory.mktemp(kind.name).resolve()
    script: Script = {
        MAKE: [
            [
                "I make things.",
                tools.write(f"{top}/project/new", "new\n"),
                tools.shell("rm src/main.c; mv readme README; sed -i s/one/ONE/ README"),
            ],
            "Things are made.",
        ],
        BREAK: [tools.shell("rm README; rmdir src; echo broken > new"), "All is broken."],
        GO_ON: [tools.shell("echo more > more"), WENT_ON],
    }
    with at_work(kind, top, script) as agent:
        states = [contents(agent.top)]
        agent.run(f"{MAKE} now")
        states.append(contents(agent.top))
        agent.run(f"{BREAK} now", session=the_session(agent)["id"])
        states.append(contents(agent.top))
        # OpenCode puts arguments with blanks in quotes.
        found = {prompt.strip('"'): checkpoint for prompt, checkpoint in prompts(agent).items()}
        yield Story(agent, states, found)


def test_each_prompt_has_a_checkpoint_before_it(story: Story) -> None:
    before, made, broken = story.states
    assert before == {"readme": "one\ntwo\n", "src/main.c": "int main;\n"}
    assert made == {"new": "new\n", "README": "ONE\ntwo\n"}
    assert broken == {"new": "broken\n"}
    assert list(story.prompts) == [f"{MAKE} now", f"{BREAK} now"]
    (session,) = sessions(story.agent)
    assert session["agent"] == story.agent.name
    for checkpoint, state in zip(story.prompts.values(), story.states[:2], strict=True):
        story.agent.cowfs.ok("restore", checkpoint, "--code")
        assert contents(story.agent.top) == state
    for _ in story.prompts:
        story.agent.cowfs.ok("undo")
    assert contents(story.agent.top) == broken


def test_the_model_is_told_what_a_command_changed(story: Story) -> None:
    assert "deleted: readme, src/main.c" in story.agent.stub.last(MAKE)


def test_both(story: Story) -> None:
    agent = story.agent
    tools = TOOLS[type(agent)]
    answer = agent.cowfs.ok("restore", story.prompts[f"{BREAK} now"], "--both")
    assert contents(agent.top) == story.states[1]
    history = copied(agent, answer["conversation"])
    *expected, last = agent.stub.history(agent.stub.requests_of(BREAK)[0])
    assert last == ("user", BREAK)
    assert history == expected
    # Gemini CLI sends results twice when it has resumed a session.
    shell, write = tools.shell("").tool, tools.write("", "").tool
    assert list(dict.fromkeys(history)) == list(
        dict.fromkeys(
            [
                ("user", MAKE),
                ("model", "I make things."),
                ("call", write),
                ("call", shell),
                ("result", write),
                ("result", shell),
                ("model", "Things are made."),
            ]
        )
    )
    assert contents(agent.top) == {**story.states[1], "more": "more\n"}


@pytest.mark.parametrize("kind", TOOLS, ids=lambda kind: kind.name)
def test_killed_in_the_middle(kind: type[Agent], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shell = TOOLS[kind].shell
    script: Script = {
        MAKE: [shell("echo 1 > one"), "One is made."],
        BREAK: [shell(f"echo half > one; echo > {fifo}; sleep 1000"), "never said"],
        GO_ON: [WENT_ON],
    }
    with at_work(kind, tmp_path, script) as agent:
        agent.run(f"{MAKE} now")
        session = the_session(agent)["id"]
        with agent.started(agent.words(f"{BREAK} now", session)) as running:
            wait_for(fifo)
            os.kill(running.pid, signal.SIGKILL)
            running.finish()
        assert the_session(agent)["state"] == "interrupted"
        history = continued(agent, session, agent.cowfs.ok("resume"))
        *before, last = agent.stub.history(agent.stub.requests_of(BREAK)[0])
        assert last == ("user", BREAK)
        assert history[: len(before)] == before
        assert ("model", "never said") not in history
        assert contents(agent.top)["one"] == "half\n"
