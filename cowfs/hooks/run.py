"""`cowfs hook AGENT [EVENT]`: what an agent runs at each step of its work.

It reads what the agent says on stdin, makes one call to the daemon, and prints what the agent's
protocol wants. It never breaks the agent and never keeps it waiting: whatever goes wrong, it ends
in time with exit code 0 (2 would forbid the agent to go on), and a line in the log says why.

Of the environment nothing is sent: it holds the agent's tokens.

Threading: for the main thread of a process of its own.
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    ITIMER_REAL,
    SIGALRM,
    setitimer,
    signal,
)

from cowfs import agents
from cowfs.agents import events
from cowfs.client import lean, places, rpc
from cowfs.hooks import journal, telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

_SECONDS = {
    events.SESSION_END: 1.2,
    events.TOOL_START: 4.0,
    events.TOOL_END: 4.0,
}
_OTHERWISE = 6.0
"""After so long a hook gives up. At the end of a session the agent itself waits 1.5 s for all
hooks together."""
_SHARE = 0.8
"""How much of that the daemon may take until the moment of a checkpoint."""
_LONGEST_INPUT = 32 << 20
_SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ash", "ksh", "env", "timeout")


class _TooLongError(BaseException):
    """The time is over. No `Exception`, so that nothing takes it for another failure."""


class _Words:
    """The command line. directory: of `-C`."""

    __slots__ = ("agent", "directory", "name", "seconds")

    def __init__(self, arguments: list[str], directory: str) -> None:
        """Raises ValueError."""
        self.directory = directory
        self.seconds = 0.0
        rest = []
        words = iter(arguments)
        for word in words:
            if word == "--timeout":
                self.seconds = float(next(words, ""))
            elif word.startswith("--timeout="):
                self.seconds = float(word.partition("=")[2])
            elif not word.startswith("-"):
                rest.append(word)
        if not rest:
            raise ValueError("no agent is named")
        self.agent = rest[0]
        self.name = rest[1] if len(rest) > 1 else ""


def run(arguments: list[str], directory: str = "") -> int:
    """Do it; returns 0. arguments: after `cowfs hook`. directory: where the agent works, if it does
    not say so itself."""
    try:
        try:
            _run(_Words(arguments, directory))
        except BaseException as error:
            setitimer(ITIMER_REAL, 0)
            journal.note(f"{' '.join(arguments)}: {_described(error)}")
        finally:
            setitimer(ITIMER_REAL, 0)
    except BaseException:
        pass  # the time was over while something else was told
    return 0


def _run(words: _Words) -> None:
    _limit(words.seconds or _OTHERWISE)
    hooks = agents.hooks(words.agent)
    said = lean.loads(_input())
    if not isinstance(said, dict):
        raise ValueError("stdin has no JSON object")
    event = hooks.event(words.name, said, os.environ)
    if event is None:
        return
    seconds = words.seconds or _SECONDS.get(event["event"], _OTHERWISE)
    _limit(seconds)
    event["agent"] = words.agent
    event["wait"] = min(seconds * _SHARE, 60.0)
    if "pid" not in event:
        event["pid"] = _agent_process()
    context, notice = _report(event, _directories(hooks, said, words))
    if context or notice:
        _print(hooks.answer(words.name, said, context, notice))


def _limit(seconds: float) -> None:
    """Give up in so many seconds, whatever is waited for."""
    signal(SIGALRM, _too_long)
    setitimer(ITIMER_REAL, min(max(seconds, 0.05), 600.0))


def _too_long(_number: int, _frame: object) -> NoReturn:
    raise _TooLongError


def _described(error: BaseException) -> str:
    if isinstance(error, _TooLongError):
        return "it took too long"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _input() -> bytes:
    """What the agent says. Raises OSError, ValueError."""
    if sys.stdin is None:
        raise ValueError("stdin is closed")
    data = b""
    while len(data) <= _LONGEST_INPUT:
        part = os.read(0, 1 << 20)
        if not part:
            return data
        data += part
    raise ValueError("stdin has too much")


def _directories(hooks: ModuleType, said: dict[str, Any], words: _Words) -> list[str]:
    found = hooks.directories(said, os.environ)
    if words.directory:
        found.append(words.directory)
    try:
        found.append(places.current_directory())
    except OSError:
        pass
    return [path for path in found if path.startswith("/") and "\0" not in path]


def _agent_process() -> int:
    """The process that runs the hook, past a shell that it runs it by; 0 when it is gone."""
    pid = os.getppid()
    for _ in range(3):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                before, _, after = file.read().rpartition(b") ")
        except OSError:
            return 0
        if before.partition(b"(")[2].decode("ascii", "replace") not in _SHELLS:
            break
        pid = int(after.split()[1])
    return pid if pid > 1 else 0


def _report(event: dict[str, Any], directories: list[str]) -> tuple[str, str]:
    """Tell the daemon: (what the model shall know, what the user shall)."""
    live = next(filter(None, map(places.find_live, directories)), None)
    if live is None:
        return "", _nowhere(event, directories)
    mountpoint, store = live
    result: dict[str, Any] = {}
    try:
        if places.daemon_is_stopped(store):
            raise rpc.ConnectionFailedError("it is stopped")
        with rpc.Client(store) as client:
            result = client.call("session.event", event)
        failure = result["missed"]
    except rpc.RpcError as error:
        failure = str(error)
    except rpc.ConnectionFailedError as error:
        failure = f"the daemon of {mountpoint} does not answer: {error}"
    except _TooLongError:
        failure = "the daemon took too long"
    if failure:
        return "", _failed(event, failure)
    return _told(event, result)


def _told(event: dict[str, Any], result: dict[str, Any]) -> tuple[str, str]:
    """What there is to say when all went well: nothing, if it was said before."""
    if result["repeated"]:
        return "", ""
    if found := result["changes"]:
        return telling.changes(found, event.get("tool", "")), ""
    begins = event["event"] == events.SESSION_START and event.get("source", "") in ("", "startup")
    text = telling.interrupted(result["interrupted"]) if begins else ""
    return text, text


def _nowhere(event: dict[str, Any], directories: list[str]) -> str:
    """There is no mount: say so, once in a session."""
    if event["event"] not in (events.SESSION_START, events.PROMPT) or not directories:
        return ""
    known = next(filter(None, map(places.find, directories)), None)
    path = known.base if known is not None else directories[0]
    if not journal.say_once(event["session"], f"not mounted {path}"):
        return ""
    text = telling.not_mounted(path, known is not None)
    journal.note(f"{event['agent']} {event['session']}: {text}")
    return text


def _failed(event: dict[str, Any], why: str) -> str:
    """Something went wrong: a line in the log, and one for the user where a checkpoint before a
    prompt is missing; once in a session if it is always the same."""
    kind, session = event["event"], event["session"]
    journal.note(f"{event['agent']} {session} {kind}: {why}")
    if kind not in (events.SESSION_START, events.PROMPT):
        return ""
    if not journal.say_once(session, f"failed {why}"):
        return ""
    what = "no checkpoint before this prompt" if kind == events.PROMPT else "nothing is recorded"
    return f"cowfs: {what}: {telling.clean(why)}"


def _print(answer: object) -> None:
    """On stdout. Not by Python's stream, which would try again at the end of the process, and give
    it another exit code. Raises OSError."""
    if not answer or sys.stdout is None:
        return
    text = answer if isinstance(answer, str) else lean.dumps(answer)
    data = text.encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(1, data) :]
