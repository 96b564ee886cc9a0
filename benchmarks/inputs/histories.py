"""Real histories to replay: a list of states, each one commit of a bare git repository.

Going to a state writes and removes exactly the files that differ, as an editor or an agent would;
the git that does it keeps its index outside the tree and leaves nothing in it.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inputs.cache import cached, pip_download
from benchmarks.system import BenchError, Env, run_tool

ROOT = Path(__file__).parents[2]
RELEASES = Path(__file__).with_name("releases.txt")
PACKAGE = "setuptools"


@dataclass(frozen=True)
class History:
    """States of a project, the oldest first."""

    name: str
    repository: Path
    """A bare repository."""
    commits: Sequence[str]

    def first(self, count: int | None) -> History:
        """The first *count* states only."""
        return History(self.name, self.repository, self.commits[:count])

    def go(self, tree: Path, number: int, index: Path, env: Env) -> None:
        """Bring *tree* from the state before to state *number*.

        *index*: a file outside the tree, kept for this tree from one call to the next.
        """
        self._git(tree, index, env, "read-tree", "--reset", "-u", self.commits[number])

    def check(self, tree: Path, number: int, scratch: Path, env: Env, *, exact: bool) -> None:
        """Raise :class:`BenchError` unless *tree* is in state *number*; *exact*: nothing more."""
        index = scratch / "check-index"
        index.unlink(missing_ok=True)
        self._git(tree, index, env, "read-tree", self.commits[number])
        said = self._git(tree, index, env, "ls-files", "-z", "--modified", "--deleted")
        if exact:
            said += self._git(tree, index, env, "ls-files", "-z", "--others")
        if said:
            first = said.split(b"\0")[0].decode(errors="replace")
            raise BenchError(f"state {number} of {self.name} is not as it was: {first}")

    def _git(self, tree: Path, index: Path, env: Env, *arguments: str) -> bytes:
        names = {"GIT_DIR": self.repository, "GIT_WORK_TREE": tree, "GIT_INDEX_FILE": index}
        full = env | {name: os.fspath(path) for name, path in names.items()}
        return run_tool(["git", *arguments], cwd=tree, env=full)


def own_history(scratch: Path, env: Env) -> History:
    """This project's own commits, along the first parents."""
    repository = scratch / "own.git"
    argv: list[str | Path] = ["git", "clone", "-q", "--bare", "--no-hardlinks", ROOT, repository]
    # The checkout may be another user's than the one that runs the benchmark.
    run_tool(argv, env=env | _trusting())
    return History("own commits", repository, _commits(repository, env))


def releases(scratch: Path, env: Env) -> History:
    """Successive releases of a package from PyPI, as they are installed."""
    versions = [line for line in RELEASES.read_text().split("\n") if line and line[0] != "#"]
    wheels = cached("releases-1", lambda path: _download(path, versions))
    repository = scratch / "releases.git"
    tree = scratch / "releases"
    full = env | {"GIT_DIR": str(repository), "GIT_WORK_TREE": str(tree)}
    for role in ("AUTHOR", "COMMITTER"):
        full |= {f"GIT_{role}_NAME": "bench", f"GIT_{role}_EMAIL": "bench@localhost"}
    run_tool(["git", "init", "-q", "--bare", repository], env=env)
    for version in versions:
        shutil.rmtree(tree, ignore_errors=True)
        with zipfile.ZipFile(next(wheels.glob(f"{PACKAGE}-{version}-*.whl"))) as wheel:
            wheel.extractall(tree)
        for arguments in (("add", "-A", "-f"), ("commit", "-q", "-m", version)):
            run_tool(["git", "-c", "gc.auto=0", *arguments], cwd=tree, env=full)
    return History(f"{PACKAGE} releases", repository, _commits(repository, env))


def _download(directory: Path, versions: Sequence[str]) -> None:
    # One at a time: pip refuses two versions of a package in one call.
    for version in versions:
        pip_download(directory, f"{PACKAGE}=={version}")


def _commits(repository: Path, env: Env) -> list[str]:
    argv = ["git", "rev-list", "--reverse", "--first-parent", "HEAD"]
    return run_tool(argv, env=env | {"GIT_DIR": str(repository)}).decode().split()


def _trusting() -> Env:
    """Lets git read a repository of another owner."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
