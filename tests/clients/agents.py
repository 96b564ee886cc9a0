"""How each agent is started: its program, what it needs in its home, its environment.

The program of an agent is named by an environment variable (`Agent.variable`), as scripts/clients
prints it. The PATH is never searched for one: what is found there belongs to whoever runs the
tests, with a login of theirs. An agent runs in a `Room`, with a home of the test's and an
environment made from nothing.

Threading: an agent runs one program at a time, or several, from one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import Cowfs
from tests.clients.isolation import Room, children
from tests.clients.stub import Stub

SECONDS = 60
"""The longest that an agent may take for one prompt."""
_COWFS = "#!{python}\nimport sys\nfrom cowfs.__main__ import main\nsys.exit(main())\n"
KEY = "sk-dummy"


@dataclass(frozen=True)
class Place:
    """Where an agent runs. cowfs: the command, as the user types it in the workspace. top: the
    workspace, the agent's working directory. home: of the user that the agent sees."""

    room: Room
    stub: Stub
    cowfs: Cowfs
    top: Path

    @property
    def home(self) -> Path:
        return self.cowfs.home

    @property
    def programs(self) -> Path:
        """A directory on the agents' PATH: `cowfs` of this checkout, and `node`, in which some of
        them are written."""
        directory = self.home / "bin"
        if not directory.exists():
            directory.mkdir()
            command = directory / "cowfs"
            command.write_text(_COWFS.format(python=sys.executable))
            command.chmod(0o755)
            if node := shutil.which("node"):
                (directory / "node").symlink_to(node)
        return directory


class Agent(ABC):
    """A real agent at work in a place.

    name: as cowfs calls it. client: as scripts/clients calls the program, and variable: the one of
    the environment that names it.
    """

    name: str
    client: str
    variable: str

    def __init__(self, program: str, place: Place) -> None:
        self.program = program
        self.place = place
        self.stub = place.stub
        self.cowfs = place.cowfs
        self.top = place.top
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Write the settings that it needs to run here at all, into the home and the workspace."""

    def places(self) -> dict[str, str]:
        """Variables that say where its settings and conversations are: for `cowfs`, too."""
        return {}

    @abstractmethod
    def own_environment(self) -> dict[str, str]: ...

    @abstractmethod
    def words(self, prompt: str, session: str) -> list[str]:
        """The command line for one prompt; session: the id of one to resume, "" for a new one."""

    @abstractmethod
    def resume_command(self, session: str) -> list[str]:
        """What a person types to go on with a session, by the agent's documentation."""

    def environment(self) -> dict[str, str]:
        """All that it is started with."""
        home = self.place.home
        return {
            "PATH": f"{self.place.programs}:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(home),
            **{name: self.cowfs.env[name] for name in ("XDG_DATA_HOME", "COWFS_AUTOMATIC")},
            **self.places(),
            **self.own_environment(),
        }

    @contextlib.contextmanager
    def started(self, words: Sequence[str]) -> Iterator[Running]:
        """The program, while the block runs; afterwards nothing that it started is left."""
        with subprocess.Popen(
            self.place.room.command([self.program, *words]),
            cwd=self.place.top,
            env=self.environment(),
            pass_fds=self.place.room.descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                yield Running(process)
            finally:
                process.terminate()
                process.wait(SECONDS)

    def run(self, prompt: str, *options: str, session: str = "", code: int = 0) -> str:
        """One prompt, to the end; what was printed. It must end with `code`."""
        return self.execute([*self.words(prompt, session), *options], code)

    def execute(self, words: Sequence[str], code: int = 0) -> str:
        """The program with other words, to the end; what was printed."""
        with self.started(words) as running:
            out, errors = running.finish()
        ended = running.process.returncode
        assert ended == code, f"it ended with {ended}:\n{out}{errors}"
        return out.strip()


class Running:
    """A program that was started in a room."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        """Of the agent itself, below the process that keeps it in its room."""
        (pid,) = children(self.process.pid)
        return pid

    def finish(self) -> tuple[str, str]:
        """Wait for its end; what it printed on stdout and on stderr."""
        out, errors = self.process.communicate(timeout=SECONDS)
        return os.fsdecode(out), os.fsdecode(errors)


class Claude(Agent):
    """Claude Code."""

    name = client = "claude"
    variable = "CLAUDE_TEST_BIN"
    tools = "Bash,Write,Edit,Read,Agent,Task"

    def prepare(self) -> None:
        self.config.mkdir()

    @property
    def config(self) -> Path:
        return self.place.home / ".claude"

    def places(self) -> dict[str, str]:
        return {"CLAUDE_CONFIG_DIR": str(self.config)}

    def own_environment(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.place.stub.url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }

    def words(self, prompt: str, session: str) -> list[str]:
        resume = ["--resume", session] if session else []
        return ["-p", prompt, *self.allowed, *resume]

    @property
    def allowed(self) -> list[str]:
        """Options for what it may do without asking."""
        return ["--permission-mode", "acceptEdits", "--allowedTools", self.tools]

    def answer_first_questions(self) -> None:
        """Those that it has for a person who starts it for the first time."""
        answers = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(self.top): {"hasTrustDialogAccepted": True}},
        }
        (self.config / ".claude.json").write_text(json.dumps(answers))

    def resume_command(self, session: str) -> list[str]:
        return ["claude", "--resume", session]


class OldClaude(Claude):
    """An older version of it."""

    client = "claude-old"
    variable = "CLAUDE_OLD_TEST_BIN"


class Codex(Agent):
    """Codex."""

    name = client = "codex"
    variable = "CODEX_TEST_BIN"

    _CONFIG = """\
model = "stub"
model_provider = "stub"
check_for_update_on_startup = false
[analytics]
enabled = false
[projects."{top}"]
trust_level = "trusted"
[features]
plugins = false
[model_providers.stub]
name = "stub"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "STUB_KEY"
request_max_retries = 0
stream_max_retries = 0
"""

    @property
    def config(self) -> Path:
        return self.place.home / ".codex"

    def prepare(self) -> None:
        self.config.mkdir()
        text = self._CONFIG.format(url=self.stub.url, top=self.top)
        (self.config / "config.toml").write_text(text)

    def places(self) -> dict[str, str]:
        return {"CODEX_HOME": str(self.config)}

    def own_environment(self) -> dict[str, str]:
        return {"STUB_KEY": KEY}

    def words(self, prompt: str, session: str) -> list[str]:
        resume = ["resume", session] if session else []
        return [
            "exec",
            # The room is the sandbox; hooks would have to be trusted by a person first.
            "--dangerously-bypass-approvals-and-sandbox",
            "--dangerously-bypass-hook-trust",
            "--skip-git-repo-check",
            *resume,
            prompt,
        ]

    def resume_command(self, session: str) -> list[str]:
        return ["codex", "resume", session]


class Gemini(Agent):
    """Gemini CLI."""

    name = client = "gemini"
    variable = "GEMINI_TEST_BIN"

    _SETTINGS = {  # noqa: RUF012
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }

    def prepare(self) -> None:
        config = self.place.home / ".gemini"
        config.mkdir()
        (config / "settings.json").write_text(json.dumps(self._SETTINGS))

    def own_environment(self) -> dict[str, str]:
        return {
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": self.place.stub.url,
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }

    def words(self, prompt: str, session: str) -> list[str]:
        resume = ["--resume", session] if session else []
        return ["-p", prompt, "--yolo", "-m", "gemini-2.5-flash", "--skip-trust", *resume]

    def resume_command(self, session: str) -> list[str]:
        return ["gemini", "--resume", session]


class OpenCode(Agent):
    """OpenCode."""

    name = client = "opencode"
    variable = "OPENCODE_TEST_BIN"

    def prepare(self) -> None:
        config = self.place.home / ".config" / "opencode"
        config.mkdir(parents=True)
        options = {"baseURL": f"{self.place.stub.url}/v1", "apiKey": KEY}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "stub",
            "options": options,
            "models": {"stub": {"name": "stub"}},
        }
        settings = {
            "provider": {"stub": provider},
            "model": "stub/stub",
            "small_model": "stub/stub",
            "permission": {"bash": "allow", "edit": "allow"},
            "autoupdate": False,
            "share": "disabled",
        }
        (config / "opencode.json").write_text(json.dumps(settings))
        # It wants to install a package of its own from npm: here it is told at once that it cannot.
        (self.place.home / ".npmrc").write_text("fetch-retries=0\nregistry=http://127.0.0.1:9/\n")

    def own_environment(self) -> dict[str, str]:
        return {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    def words(self, prompt: str, session: str) -> list[str]:
        resume = ["-s", session] if session else []
        return ["run", *resume, prompt]

    def resume_command(self, session: str) -> list[str]:
        return ["opencode", "--session", session]
