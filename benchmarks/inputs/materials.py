"""Everything the file workloads need, and why some of it is not there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.inputs.cache import cached, fetch, pip_download
from benchmarks.inputs.project import Archive
from benchmarks.system import BenchError, Env, run_tool

WHEELS = (
    "pygments==2.19.2",
    "rich==14.0.0",
    "networkx==3.5",
    "click==8.1.8",
    "markdown-it-py==3.0.0",
    "mdurl==0.1.2",
)
"""Pure Python, so the same everywhere: 1,200 modules."""
TESTED = "click==8.1.8"
"""Its source archive has its tests: 650 of them, in about two seconds."""
C_PROJECT = "brotli==1.1.0"
"""Its source archive has the C library and program: 32 files."""
NPM = {"eslint": "9.30.0", "express": "5.1.0", "typescript": "5.8.3"}
"""With their dependencies 157 packages and 2,300 files."""

MAKEFILE = """\
# Made by the benchmark: the package's own build goes through setuptools.
CFLAGS = -O0 -Ic/include -MMD
SOURCES := $(wildcard c/common/*.c c/dec/*.c c/enc/*.c c/tools/*.c)
OBJECTS := $(SOURCES:.c=.o)

brotli: $(OBJECTS)
\t$(CC) -o $@ $^ -lm

clean:
\trm -f brotli $(OBJECTS) $(OBJECTS:.o=.d)

-include $(OBJECTS:.o=.d)
"""


@dataclass
class Inputs:
    """What the workloads work on; the same for every target."""

    archive: Archive
    """The project that is unpacked."""
    env: Env
    """Environment of the tools."""
    data_mib: int = 256
    """Size in MiB of the file that is written and read as a whole."""
    paths: dict[str, Path] = field(default_factory=dict)
    """Materials by name: see :data:`MATERIALS`."""
    obstacles: dict[str, str] = field(default_factory=dict)
    """Why a material is not there."""

    def path(self, name: str) -> Path:
        """One material; a workload that needs it is only run when it is there."""
        return self.paths[name]

    def gather(self, names: Collection[str]) -> None:
        """Fetch or make the materials *names*; failures are kept as obstacles."""
        for name in names:
            try:
                self.paths[name] = MATERIALS[name](self)
            except (BenchError, OSError) as error:
                self.obstacles[name] = str(error)


def _wheels(inputs: Inputs) -> Path:
    """A directory of wheels."""
    return cached("wheels-1", lambda path: pip_download(path, *WHEELS))


def _source(requirement: str, extra: Mapping[str, str], directory: Path) -> None:
    """Unpack a package's source archive as ``DIRECTORY/source``, with files added."""
    pip_download(directory, requirement, source=True)
    packed = next(directory.glob("*.tar.gz"), None)
    if packed is None:
        raise BenchError(f"{requirement} has no .tar.gz")
    source = directory / "source"
    source.mkdir()
    fetch(["tar", "-xf", packed, "-C", source, "--strip-components=1", "--no-same-owner"])
    packed.unlink()
    for name, text in extra.items():
        (source / name).write_text(text)


def _c_project(inputs: Inputs) -> Path:
    """A directory of C sources with a Makefile."""
    fill = partial(_source, C_PROJECT, {"Makefile": MAKEFILE})
    return cached("c-project-1", fill) / "source"


def _tested(inputs: Inputs) -> Path:
    """A Python package with its tests."""
    return cached("tested-1", partial(_source, TESTED, {})) / "source"


def _npm(inputs: Inputs) -> Path:
    """``project`` with package.json and a lock file, ``cache`` with all that it names."""
    if not shutil.which("npm"):
        raise BenchError("npm is not installed")

    def fill(directory: Path) -> None:
        project = directory / "project"
        project.mkdir()
        wanted = {"name": "bench", "version": "1.0.0", "private": True, "dependencies": NPM}
        (project / "package.json").write_text(json.dumps(wanted) + "\n")
        options = npm_options(directory / "cache")
        fetch(["npm", "install", *options], cwd=project)
        # The second time it goes by the lock file, and caches what that alone makes it ask for.
        fetch(["npm", "ci", *options], cwd=project)
        shutil.rmtree(project / "node_modules")

    return cached("npm-1", fill)


def npm_options(cache: Path) -> list[str]:
    """Options of every npm call: no scripts, which would fetch more, and no reports."""
    return [
        "--cache",
        str(cache),
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]


def _branches(inputs: Inputs) -> Path:
    """A repository with branches ``main`` and ``other``, which differs in one file of five.

    Made from the project that is unpacked: contents, names and directories differ, as between two
    releases. Lies in the run's own directory, for it depends on ``--source``.
    """
    repository = Path(inputs.env["HOME"]) / "branches"
    repository.mkdir()

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
        run_tool(["git", *who, *arguments], cwd=repository, env=inputs.env)

    run_tool(["tar", "-xf", inputs.archive.path, "-C", repository], env=inputs.env)
    git("init", "-q", "-b", "main")
    git("add", "-A", "-f")
    git("commit", "-q", "-m", "main")
    git("checkout", "-q", "-b", "other")
    listed = run_tool(["git", "ls-files", "-s", "-z"], cwd=repository, env=inputs.env)
    entries = [entry.split(b"\t", 1) for entry in listed.split(b"\0") if entry]
    names = [name.decode(errors="surrogateescape") for mode, name in entries if mode[:3] == b"100"]
    for turn, name in enumerate(names[::5]):
        path = repository / name
        if turn % 10 == 0:
            path.unlink()
        elif turn % 10 == 1:
            path.rename(path.with_name("moved-" + path.name))
        else:
            path.write_bytes(path.read_bytes() + b"\n# changed on the other branch\n")
    git("add", "-A", "-f")
    git("commit", "-q", "-m", "other")
    git("checkout", "-q", "main")
    return repository


MATERIALS: Mapping[str, Callable[[Inputs], Path]] = {
    "wheels": _wheels,
    "c-project": _c_project,
    "tested": _tested,
    "npm": _npm,
    "branches": _branches,
}


def python() -> Path:
    """The interpreter of the checkout's environment, which has pip and pytest."""
    return Path(sys.executable)
