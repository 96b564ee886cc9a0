"""`cowfs hook` when something is wrong: it ends with 0, in time, and says why in the log.

There is no mount: what `/proc/self/mountinfo` would say is given, and the daemon is a socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_MAIN = (
    "import sys; from cowfs.client import places; from cowfs import mounts;"
    "live = [tuple(word.split('=')) for word in sys.argv[1].split(',') if word];"
    "places.mounts = lambda: live;"
    "del sys.argv[1]; from cowfs.__main__ import main; sys.exit(main())"
)
_SECONDS = 20
ANSWER: dict[str, Any] = {
    "session": "s1",
    "checkpoint": None,
    "made": False,
    "repeated": False,
    "missed": "",
}
ANSWER |= {"changes": None, "interrupted": []}


class Hook:
    """Runs `cowfs hook` in an environment of its own. live: what is mounted, mountpoint=store."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.project = top / "project"
        self.project.mkdir()
        self.store = top / "store"
        self.store.mkdir()
        self.live = f"{self.project}={self.store}"
        home = top / "home"
        home.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_DATA_HOME": str(top / "data"),
            "ANTHROPIC_API_KEY": "sk-secret",
        }

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        defaults: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-c", _MAIN, self.live, *words],
            cwd=self.project,
            env=self.env,
            **{**defaults, "stderr": subprocess.PIPE, **options},
        )

    def __call__(self, *words: str, said: Any = None, name: str = "UserPromptSubmit") -> Any:
        """What it prints, as JSON; None for nothing. It has to end with 0 and without errors."""
        if not isinstance(said, bytes):
            known = {"session_id": "s1", "cwd": str(self.project), "hook_event_name": name}
            said = json.dumps({**known, "prompt": "go", "prompt_id": "p1", **(said or {})}).encode()
        with self.start("hook", *(words or ("claude",))) as process:
            out, err = process.communicate(said, timeout=_SECONDS)
        assert (process.returncode, err) == (0, b"")
        return json.loads(out) if out else None

    def log(self) -> list[str]:
        path = self.top / "data" / "cowfs" / "hooks.log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


@contextlib.contextmanager
def daemon(hook: Hook, serve: Callable[[socket.socket], object]) -> Iterator[None]:
    """Something that listens where a daemon would."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.getcwd()
    os.chdir(hook.store)
    try:
        server.bind("control.sock")
    finally:
        os.chdir(before)
    server.listen()

    def run() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def answering(answer: Any, asked: list[Any] | None = None) -> Callable[[socket.socket], None]:
    """A daemon that gives an answer: bytes as they are, else as a result."""

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                if asked is not None:
                    asked.append(request)
                data = answer
                if not isinstance(answer, bytes):
                    document = {"jsonrpc": "2.0", "id": request["id"], "result": answer}
                    data = json.dumps(document).encode() + b"\n"
                connection.sendall(data)

    return serve


def test_one_call(hook: Hook) -> None:
    asked: list[Any] = []
    with daemon(hook, answering(ANSWER, asked)):
        assert hook() is None
    assert [request["method"] for request in asked] == ["session.event"]
    params = asked[0]["params"]
    assert 0 < params.pop("wait") <= 60
    assert params == {
        "agent": "claude",
        "event": "prompt",
        "session": "s1",
        "cwd": str(hook.project),
        "prompt": "go",
        "prompt_id": "p1",
        "pid": os.getpid(),
    }
    assert hook.log() == []


def test_nothing_of_the_environment_is_sent(hook: Hook) -> None:
    asked: list[Any] = []
    with daemon(hook, answering(ANSWER, asked)):
        for name in ("SessionStart", "UserPromptSubmit", "Stop", "SessionEnd"):
            hook("claude", name)
    assert len(asked) == 4
    assert "secret" not in json.dumps(asked)


def test_not_mounted_is_said_once_in_a_session(hook: Hook) -> None:
    hook.live = ""
    said = hook("claude", "SessionStart")["systemMessage"]
    assert str(hook.project) in said
    assert "cowfs mount" in said
    assert hook("claude", "SessionStart") is None
    assert hook() is None
    assert hook("claude", said={"session_id": "s2"}) is not None
    assert len(hook.log()) == 2


def test_a_workspace_that_is_not_mounted_is_named(hook: Hook) -> None:
    hook.live = ""
    row = {"base": str(hook.project), "mountpoint": str(hook.project), "store": str(hook.store)}
    registry = hook.top / "data" / "cowfs" / "workspaces.json"
    registry.parent.mkdir(parents=True)
    registry.write_text(json.dumps({"workspaces": [row]}))
    inside = hook.project / "src"
    inside.mkdir()
    said = hook("claude", "SessionStart", said={"cwd": str(inside)})["systemMessage"]
    assert f"`cowfs mount {hook.project}`" in said


def test_other_events_say_nothing_where_nothing_is_mounted(hook: Hook) -> None:
    hook.live = ""
    for name in ("PreToolUse", "PostToolUse", "SubagentStart", "Stop", "SessionEnd"):
        assert hook("claude", name, said={"tool_name": "Bash", "agent_id": "a"}) is None


def test_nobody_listens(hook: Hook) -> None:
    said = hook()["systemMessage"]
    assert "no checkpoint" in said
    assert hook() is None, "it is said once"
    assert len(hook.log()) == 2
    assert hook("claude", "Stop") is None
    assert len(hook.log()) == 3


def test_an_error_of_the_daemon(hook: Hook) -> None:
    error = {"code": 44, "message": "the store cannot grow", "data": {"message": "it is full"}}
    document = {"jsonrpc": "2.0", "id": 1, "error": error}
    with daemon(hook, answering(json.dumps(document).encode() + b"\n")):
        assert "it is full" in hook()["systemMessage"]
    assert "it is full" in hook.log()[-1]


@pytest.mark.parametrize(
    "answer",
    [
        b"\n",
        b"nonsense\n",
        b"[]\n",
        b'{"id": 1}\n',
        b'{"id": 1, "result": null}\n',
        b'{"id": 1, "result": {}}\n',
        b'{"id": 1, "error": 7}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_an_answer_that_is_none(hook: Hook, answer: bytes) -> None:
    with daemon(hook, answering(answer)):
        hook()
    assert len(hook.log()) == 1


def test_a_daemon_that_closes_the_connection(hook: Hook) -> None:
    with daemon(hook, lambda connection: None):
        hook()
    assert len(hook.log()) == 1


def test_a_daemon_that_does_not_answer_in_time(hook: Hook) -> None:
    """The end of the time is a signal; here it comes when the daemon has been asked."""
    release = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(1)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        os.kill(struct.unpack("3i", credentials)[0], signal.SIGALRM)
        release.wait(_SECONDS)

    with daemon(hook, wait):
        try:
            said = hook()["systemMessage"]
        finally:
            release.set()
    assert "took too long" in said
    assert "took too long" in hook.log()[-1]


def test_it_ends_in_time(hook: Hook) -> None:
    release = threading.Event()
    with daemon(hook, lambda _: release.wait(_SECONDS)):
        try:
            hook("claude", "--timeout", "0.3")
        finally:
            release.set()
    assert "took too long" in hook.log()[-1]


def test_a_daemon_that_is_stopped_is_not_waited_for(hook: Hook) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            (hook.store / "daemon.pid").write_text(f"{other.pid}\n")
            with daemon(hook, lambda connection: time.sleep(0)):
                assert "stopped" in hook()["systemMessage"]
        finally:
            other.kill()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense",
        b"[]",
        b"7",
        b'{"session_id": "s1"',
        b"\xff",
        b"[" * 100_000,
        b'{"session_id": "s1", "hook_event_name": "Stop", "cwd": "\\ud800"}',
    ],
)
def test_stdin_that_makes_no_sense(hook: Hook, said: bytes) -> None:
    assert hook(said=said) is None
    assert len(hook.log()) == 1


def test_events_that_nobody_wants_say_nothing_at_all(hook: Hook) -> None:
    assert hook("claude", "Notification") is None
    assert hook.log() == []


@pytest.mark.parametrize(
    "words", [("claude", "--timeout", "soon"), ("--json",), ("claude", "Stop", "more", "-x")]
)
def test_words_that_make_no_sense_never_stop_the_agent(hook: Hook, words: tuple[str, ...]) -> None:
    hook(*words)


def test_a_command_line_that_is_not_plain(hook: Hook) -> None:
    hook.live = ""
    for words in (["-C", str(hook.project), "hook", "claude"], ["--json", "hook", "claude"]):
        with hook.start(*words, "SessionStart") as process:
            said = json.dumps({"session_id": words[0]}).encode()
            out, err = process.communicate(said, timeout=_SECONDS)
        assert (process.returncode, err) == (0, b"")
        assert str(hook.project) in json.loads(out)["systemMessage"]
    with hook.start("hook") as process:
        out, err = process.communicate(b"", timeout=_SECONDS)
    assert (process.returncode, out) == (0, b"")
    assert b"cowfs hooks install" in err


def test_stdin_and_stdout_that_are_closed(hook: Hook) -> None:
    shell = f"exec {sys.executable} -c \"$0\" '' hook claude SessionStart"
    for ending in ("<&-", ">&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{shell} {ending}", _MAIN],
            input=json.dumps({"session_id": ending, "cwd": "/"}).encode(),
            env=hook.env,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, ending


def test_a_reader_that_has_gone(hook: Hook) -> None:
    hook.live = ""
    reading, writing = os.pipe()
    os.close(reading)
    with hook.start("hook", "claude", "SessionStart", stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(b'{"session_id": "s1", "cwd": "/"}', timeout=_SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert "BrokenPipe" in hook.log()[-1]


def test_a_log_that_cannot_be_written(hook: Hook) -> None:
    (hook.top / "data").write_text("no directory")
    assert hook() is None


def test_the_log_does_not_grow_for_ever(hook: Hook) -> None:
    directory = hook.top / "data" / "cowfs"
    directory.mkdir(parents=True)
    (directory / "hooks.log").write_text("x" * (1 << 20))
    (directory / "hooks.said").write_text("x y\n" * (1 << 14))
    hook()
    hook()
    assert (directory / "hooks.log").stat().st_size < 1000
    assert (directory / "hooks.log.1").stat().st_size > 1 << 20
    assert (directory / "hooks.said").stat().st_size < 1 << 16


CHANGES: dict[str, Any] = {
    "since": "0123456789ab",
    "created": [{"path": "out/", "inside": 2}],
    "modified": [],
}
CHANGES |= {"attributes": [], "deleted": [{"path": "a\nb", "inside": 0}], "many": False}
CHANGES |= {"renamed": [{"path": "b", "old_path": "a"}], "aside": {".git": 3}, "more": 0}


def test_what_a_command_changed_is_told_to_the_agent(hook: Hook) -> None:
    said = {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": {"command": "make"}}
    with daemon(hook, answering({**ANSWER, "changes": {**CHANGES, "others": 0}})):
        told = hook("claude", "PostToolUse", said=said)["hookSpecificOutput"]
    assert told["hookEventName"] == "PostToolUse"
    assert told["additionalContext"] == (
        "cowfs: changed while this ran (checkpoint 01234567 is the state before it):\n"
        "created: out/ (2 inside)\n"
        "deleted: a\\nb\n"
        "renamed: a -> b\n"
        "not listed: 3 in .git"
    )


def test_what_was_told_before_is_not_told_again(hook: Hook) -> None:
    said = {"tool_name": "Bash", "tool_use_id": "t1"}
    answer = {**ANSWER, "changes": {**CHANGES, "others": 0}, "repeated": True}
    with daemon(hook, answering(answer)):
        assert hook("claude", "PostToolUse", said=said) is None


def test_an_interrupted_session_is_told_to_agent_and_user(hook: Hook) -> None:
    row = {"id": "old", "agent": "claude", "title": "", "prompt": "the\ntax", "last": 10**18}
    with daemon(hook, answering({**ANSWER, "interrupted": [row]})):
        told = hook("claude", "SessionStart", said={"source": "startup"})
        assert hook("claude", "SessionStart", said={"source": "compact"}) is None
    context = told["hookSpecificOutput"]["additionalContext"]
    assert "`cowfs resume old`" in context
    assert '("the")' in context
    assert told["systemMessage"] == context


def test_a_checkpoint_that_was_missed_is_told(hook: Hook) -> None:
    with daemon(hook, answering({**ANSWER, "missed": "another operation is under way"})):
        assert "another operation" in hook()["systemMessage"]
        assert hook("claude", "Stop") is None
    assert len(hook.log()) == 2
