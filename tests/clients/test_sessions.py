"""What happens in sessions of Claude Code: a kill, an interruption, a compaction, sub-agents."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.clients.agents import Claude
from tests.clients.conftest import StartClaude
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
from tests.clients.protocols import Said
from tests.clients.scenes import (
    BREAK,
    HELP,
    LAST,
    MAKE,
    bash,
    before_the_prompt,
    helper,
    wait_for,
)
from tests.clients.stub import Fail, Script
from tests.clients.terminal import CLEAR_LINE, ENTER, ESCAPE, UP, in_terminal

MADE_ONLY = [Said("user", MAKE), Said("model", "Things are made.")]

# -- killed ---------------------------------------------------------------------------------------

ONE_MADE = [
    Said("user", MAKE),
    Said("call", "Bash"),
    Said("result", "Bash"),
    Said("model", "One is made."),
]


def killed(claude: StartClaude, top: Path, *, with_daemon: bool = False) -> tuple[Claude, str]:
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
        if with_daemon:
            ((_, store),) = agent.cowfs.mounts()
            agent.cowfs.kill(store)
        running.finish()
    assert with_daemon or the_session(agent)["state"] == "interrupted"
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


def test_killed_with_its_daemon(claude: StartClaude, tmp_path: Path) -> None:
    """As when the machine crashes, after which nothing is mounted."""
    agent, session = killed(claude, tmp_path, with_daemon=True)
    command = ("-C", agent.top, "resume", "--json", "--code")
    result = agent.cowfs.run(*command, cwd=agent.cowfs.top)
    assert result.code == 0, result
    answer = result.document
    assert answer["session"]["id"] == session
    assert contents(agent.top)["one"] == "1\n"
    assert copied(agent, answer["conversation"]) == ONE_MADE


def test_killed_and_run_by_resume(claude: StartClaude, tmp_path: Path) -> None:
    """`cowfs resume --exec` in a terminal that knows nothing of the session but the key."""
    agent, session = killed(claude, tmp_path)
    agent.answer_first_questions()
    (agent.place.programs / "claude").symlink_to(agent.program)
    known = ("PATH", "HOME", "LANG", "XDG_DATA_HOME", "ANTHROPIC_API_KEY")
    environment = {name: agent.environment()[name] for name in known}
    command = [str(agent.place.programs / "cowfs"), "resume", "--exec"]
    with in_terminal(agent, command, environment) as terminal:
        terminal.until("[y/N]")
        terminal.press(f"n{ENTER}")
        terminal.until("One is made.")
        terminal.type(f"{GO_ON} now")
        terminal.press(ENTER)
        terminal.until(WENT_ON, "s · done")
        assert the_session(agent)["state"] == "active"
        terminal.type("/exit", "Exit the")
        terminal.press(ENTER)
        assert terminal.finish() == 0
    assert agent.stub.history(agent.stub.last(GO_ON))[:5] == [*ONE_MADE, ("user", BREAK)]
    assert the_session(agent)["id"] == session


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


def test_two_sessions_at_once(claude: StartClaude, tmp_path: Path) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    os.mkfifo(begun)
    os.mkfifo(end)
    wait = f"echo > {begun}; read line < {end}"
    agent = claude(
        {
            MAKE: [bash(f"echo a > a; {wait}; echo c > c"), "Things are made."],
            HELP: [bash("echo b > b"), "I helped."],
        }
    )
    with agent.started(agent.words(f"{MAKE} now", "")) as running:
        wait_for(begun)
        agent.run(f"{HELP} now")
        end.write_text("\n")
        running.finish()
    cowfs = agent.cowfs
    assert contents(agent.top).items() >= {"a": "a\n", "b": "b\n", "c": "c\n"}.items()
    rows = cowfs.ok("log", "--kind", "prompt")["checkpoints"]
    session = {row["message"]: row["session"] for row in rows}
    assert {row["id"]: row["state"] for row in sessions(agent)} == dict.fromkeys(
        session.values(), "ended"
    )
    for prompt, paths in ((MAKE, ["a", "c"]), (HELP, ["b"])):
        stories = cowfs.ok("changes", "--by", session[f"{prompt} now"])["changes"]
        assert [pair["path"] for story in stories for pair in story["paths"]] == paths


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
    with in_terminal(agent, [agent.program, *agent.allowed]) as terminal:
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
