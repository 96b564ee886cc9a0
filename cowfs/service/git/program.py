"""Running git so that nothing of the user's is touched or listened to.

All variables with which git can be led elsewhere (`GIT_DIR`, `GIT_INDEX_FILE`, ...) are taken out
of the environment. No hook runs, nothing is collected, nobody is asked for anything. No command
here looks at an index or a working tree.

Threading: each call runs a process and waits for it; no state is shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from cowfs.errors import GitFailedError, GitRepositoryError, GitUnavailableError

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "gc.auto=0",
    "maintenance.auto=false",
    "core.fsmonitor=false",
    "protocol.allow=never",  # what a partial clone lacks is not fetched
)
_SECONDS = 600
NAME = "cowfs"
EMAIL = "cowfs@cowfs.invalid"


def environment(own: Mapping[str, str], **more: str) -> dict[str, str]:
    """The environment for git, without what would lead it elsewhere. own: of this process."""
    kept = {name: value for name, value in own.items() if not name.startswith("GIT_")}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        **more,
    }


def _program(env: Mapping[str, str]) -> str:
    """Where git is. Raises GitUnavailableError."""
    found = shutil.which("git", path=env.get("PATH", os.defpath))
    if found is None:
        raise GitUnavailableError(detail="there is no git in PATH")
    return found


def command(
    env: Mapping[str, str], words: Sequence[str], settings: Sequence[str] = ()
) -> list[str]:
    """A command line of git. Raises GitUnavailableError."""
    options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    return [_program(env), *options, *words]


class Git:
    """A repository: commands run in it.

    directory: git's own directory, absolute. surroundings: the environment of this process.
    """

    def __init__(self, top: str, surroundings: Mapping[str, str]) -> None:
        """The repository at `top`: its working tree's top, or a bare one; not one around it.

        Raises GitUnavailableError, GitRepositoryError.
        """
        self.top = os.path.realpath(top)
        self.surroundings = surroundings
        ceiling = os.path.dirname(self.top)
        self._env = environment(surroundings, GIT_CEILING_DIRECTORIES=ceiling)
        done = self._run(["rev-parse", "--absolute-git-dir"])
        if done.returncode:
            raise self._no_repository(_text(done.stderr))
        self.directory = os.fsdecode(done.stdout.rstrip(b"\n"))

    def _no_repository(self, said: str) -> GitRepositoryError:
        if "dubious ownership" in said:
            return GitRepositoryError(
                path=self.top,
                detail="it belongs to another user, and git does not trust it",
                advice=f"If you do: git config --global --add safe.directory {self.top}",
            )
        if "not a git repository" in said:
            return GitRepositoryError(
                path=self.top,
                detail="there is none",
                advice="Make one with `git init`, or name another with --repo DIR.",
            )
        return GitRepositoryError(
            path=self.top, detail=said or "git says nothing", advice="`git status` may say more."
        )

    def run(self, *words: str, stdin: bytes = b"") -> bytes:
        """What a command prints. Raises GitFailedError, GitUnavailableError."""
        done = self._run(words, stdin)
        if done.returncode:
            raise GitFailedError(detail=f"git {words[0]}: {_text(done.stderr)}")
        return done.stdout

    def succeeds(self, *words: str) -> bool:
        """Whether a command ends with 0."""
        return self._run(words).returncode == 0

    def start(
        self, *words: str, pass_fds: Sequence[int] = (), stderr: int
    ) -> subprocess.Popen[bytes]:
        """A command that is written to; the caller ends it. Raises GitUnavailableError."""
        return start(
            command(self._env, words),
            self.top,
            self._env,
            pass_fds=pass_fds,
            stdout=stderr,
            stderr=stderr,
        )

    def _run(self, words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                command(self._env, words),
                cwd=self.top,
                env=self._env,
                input=stdin,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except NotADirectoryError:
            raise self._no_repository("not a git repository") from None
        except FileNotFoundError:
            if not os.path.isdir(self.top):
                raise self._no_repository("not a git repository") from None
            raise GitUnavailableError(detail="git cannot be started") from None
        except OSError as error:
            raise GitUnavailableError(detail=f"it cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise GitFailedError(detail=f"git {words[0]} did not end") from None


def start(
    words: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    *,
    pass_fds: Sequence[int] = (),
    stdout: int = subprocess.PIPE,
    stderr: int,
) -> subprocess.Popen[bytes]:
    """A process of git whose stdin is a pipe. Raises GitUnavailableError."""
    try:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
        )
    except OSError as error:
        raise GitUnavailableError(detail=f"it cannot be started: {error.strerror}") from None


def _text(said: bytes) -> str:
    """The last line that git said, without its prefix."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or [""])[0].removeprefix("fatal: ").removeprefix("error: ")


def said(errors: bytes) -> str:
    """The same, for who reads git's messages from a file."""
    return _text(errors) or "git ended without a word"
