"""Changes to a project with real tools: a shell, sed, git, an editor's save, Python."""

from __future__ import annotations

import mmap
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from _demo.listing import Entry, Listing
from _demo.terminal import DemoError, Report, Step

_TEXT_LIMIT = 1 << 20
"""Larger files are not edited, in bytes."""

# The user's own settings and hooks have no part in the demo, and no git process may go on
# working in the background while the demo unmounts.
_GIT = ["git"]
for _setting in (
    "user.name=cowfs demo",
    "user.email=demo@example.invalid",
    "init.defaultBranch=main",
    "safe.directory=*",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "diff.ignoreSubmodules=all",
    "submodule.recurse=false",
    "advice.addEmbeddedRepo=false",
):
    _GIT += ["-c", _setting]


def environment() -> dict[str, str]:
    """The environment for all tools: plain messages, and nothing that leads git or Python away."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GIT_", "PYTHON", "LC_")) and name not in {"BASH_ENV", "CDPATH"}
    }
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }


@dataclass(frozen=True, slots=True)
class Tools:
    """Runs tools in the project's directory and prints each with its time."""

    report: Report
    project: Path

    def run(self, step: Step, command: list[str], *, shown: str = "") -> str:
        """Runs *command* and returns what it printed. Raises DemoError when it fails."""
        with self.report.timed(step, "$ " + (shown or shlex.join(command))):
            result = subprocess.run(
                command,
                cwd=self.project,
                env=environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=False,
            )
        if result.returncode != 0:
            raise DemoError(
                f"{shown or shlex.join(command)}\nended with exit code {result.returncode}:\n"
                f"{(result.stderr.strip() or result.stdout.strip())[-2000:]}"
            )
        return result.stdout

    def shell(self, step: Step, script: str, *arguments: str, shown: str) -> None:
        """Runs a bash script; *arguments* are its "$@"."""
        self.run(step, ["bash", "-euc", script, "bash", *arguments], shown=shown)

    def git(self, step: Step, *arguments: str) -> str:
        """Runs git, with settings of the demo's own, on the project's own repository only."""
        here = []
        if arguments[0] != "init":
            here = [f"--git-dir={self.project / '.git'}", f"--work-tree={self.project}"]
        return self.run(step, [*_GIT, *here, *arguments], shown="git " + shlex.join(arguments))

    def python(
        self, step: Step, what: str, action: Callable[..., None], *arguments: object
    ) -> None:
        """Times something that this program does to the project itself."""
        with self.report.timed(step, what):
            try:
                action(*arguments)
            except OSError as error:
                raise DemoError(f"{what}: {error}") from error


@dataclass
class Targets:
    """Which paths of the project to change; each path is given out once."""

    project: Path
    listing: Listing
    files: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.files = [
            name
            for name, entry in self.listing.items()
            if entry.kind == "file" and ".git" not in name.split("/") and self._writable(name)
        ]

    def _writable(self, name: str) -> bool:
        path = self.project / name
        return os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)

    def take(self, count: int, wanted: Callable[[str, Entry], bool] | None = None) -> list[str]:
        """Up to *count* files that are *wanted*, from all over the tree."""
        found = [n for n in self.files if wanted is None or wanted(n, self.listing[n])]
        distance = max(1, len(found) // count)
        spread = found[distance // 2 :: distance][:count]
        taken = set(spread)
        self.files = [name for name in self.files if name not in taken]
        return spread

    def take_text(self, count: int, ending: str = "") -> list[str]:
        """Up to *count* files of text, of moderate size, with this *ending*."""

        def wanted(name: str, entry: Entry) -> bool:
            if not name.endswith(ending) or not 0 < entry.size <= _TEXT_LIMIT:
                return False
            with open(self.project / name, "rb") as file:
                return b"\0" not in file.read(4096)

        return self.take(count, wanted)

    def take_folder(self, files: int) -> str | None:
        """A directory with about this many *files* below it, all of them still to be had."""
        available = set(self.files)
        whole: dict[str, int] = {}
        spoilt: set[str] = set()
        for name, entry in self.listing.items():
            if entry.kind == "directory":
                continue
            for parent in list(Path(name).parents)[:-1]:
                if name in available:
                    whole[str(parent)] = whole.get(str(parent), 0) + 1
                else:
                    spoilt.add(str(parent))
        candidates = [
            name
            for name in whole
            if name not in spoilt and os.access((self.project / name).parent, os.W_OK)
        ]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda name: (abs(whole[name] - files), name))
        self.files = [name for name in self.files if not name.startswith(chosen + "/")]
        return chosen


@dataclass(frozen=True, slots=True)
class Touched:
    """What the later steps need: a file changed in place, and one that was deleted, if any."""

    appended: str | None
    deleted: str | None


def make(step: Step, tools: Tools, targets: Targets) -> Touched:
    """Makes the changes, each kind with the tool that is usual for it."""
    deleted = targets.take(5) if len(targets.files) > 20 else []
    if deleted:
        tools.shell(step, 'rm -- "$@"', *deleted, shown=f"rm ... ({len(deleted)} files)")
    removed = targets.take_folder(40)
    if removed:
        tools.run(step, ["rm", "-r", "--", removed])
    moved = targets.take_folder(200)
    if moved:
        tools.run(step, ["mv", "--", moved, moved + ".moved"])
    for name in targets.take(1):
        tools.run(step, ["mv", "--", name, name + ".renamed"])

    appended = _edit_text(step, tools, targets)
    _change_metadata(step, tools, targets)
    folder = _write_new(step, tools)
    _run_python(step, tools, targets, folder)
    tools.git(step, "checkout", "-q", "-B", "cowfs-demo")
    tools.git(step, "add", "-A")
    tools.git(step, "commit", "-q", "--allow-empty", "-m", "Changes of the demo")
    return Touched(appended, deleted[0] if deleted else None)


def _edit_text(step: Step, tools: Tools, targets: Targets) -> str | None:
    edited = targets.take_text(200, ".py") or targets.take_text(50)
    if edited:
        tools.run(
            step,
            ["sed", "-i", "s/self/this/g", "--", *edited],
            shown=f"sed -i s/self/this/g ... ({len(edited)} files)",
        )
    appended = targets.take_text(1)
    for name in appended:
        script = 'cat >>"$1" <<EOF\nA line that a shell has appended.\nAnd another one.\nEOF'
        tools.shell(step, script, name, shown=f"cat >>{name} <<EOF")
    for name in targets.take_text(1):
        tools.shell(step, 'echo "all new" >"$1"', name, shown=f'echo "all new" >{name}')
    for name in targets.take_text(1):
        path = tools.project / name
        what = f"editor: temporary file, fsync, rename to {name}"
        tools.python(step, what, _save_atomically, path)
    for name in targets.take_text(1):
        path = tools.project / name
        tools.python(step, f"mmap: write through a mapping of {name}", _write_mapped, path)
    return appended[0] if appended else None


def _change_metadata(step: Step, tools: Tools, targets: Targets) -> None:
    for name in targets.take(1):
        tools.run(step, ["chmod", "0751", "--", name])
    for name in targets.take(1):
        tools.run(step, ["touch", "-d", "2001-02-03 04:05:06.789012345", "--", name])
    for name in targets.take(1):
        tools.run(step, ["ln", "--", name, name + ".hard-link"])
        tools.run(step, ["ln", "-s", "--", os.path.basename(name), name + ".link"])
        if _has_user_xattrs(tools.project.parent):
            what = f"setxattr user.cowfs.demo of {name}"
            value = b"a value\0with a zero byte"
            tools.python(step, what, os.setxattr, tools.project / name, "user.cowfs.demo", value)
        else:
            tools.report.line("    (no extended attributes: the temporary directory has none)")
    if os.geteuid() == 0:
        for name in targets.take(1):
            tools.run(step, ["chown", "12345:54321", "--", name])


def _write_new(step: Step, tools: Tools) -> str:
    """A new directory, with a file that does not compress and one with a hole; its name."""
    folder = "cowfs-demo"
    while os.path.lexists(tools.project / folder):
        folder += "-too"
    tools.run(step, ["mkdir", folder])
    for script in (
        f"head -c 8388608 /dev/urandom >{folder}/random",
        f"truncate -s 16M {folder}/sparse; echo end >>{folder}/sparse",
    ):
        tools.shell(step, script, shown=script)
    return folder


_TEST = """\
import unittest

from cowfs_demo_sum import double


class DoubleTest(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(21), 42)
"""


def _run_python(step: Step, tools: Tools, targets: Targets, folder: str) -> None:
    """A build and a test run, both of which write byte code into the tree."""
    sources = [name for name in targets.files if name.endswith(".py")][:300]
    if sources:
        command = [sys.executable, "-P", "-m", "compileall", "-q", "-f", "--", *sources]
        # Some projects have files with errors on purpose; compileall goes on after them.
        tools.shell(
            step,
            '"$@" >/dev/null 2>&1 || test $? -eq 1',
            *command,
            shown=f"python -m compileall ... ({len(sources)} files)",
        )

    def write_test() -> None:
        module, test = "cowfs_demo_sum.py", "test_sum.py"
        (tools.project / folder / module).write_text("def double(number):\n    return 2 * number\n")
        (tools.project / folder / test).write_text(_TEST)

    tools.python(step, "write a module and its test", write_test)
    command = [sys.executable, "-P", "-m", "unittest", "discover", "-q", "-s", folder]
    tools.run(step, command, shown=f"python -m unittest discover -s {folder}")


def _save_atomically(path: Path) -> None:
    """What editors do: the new text goes to another file, which then takes the name."""
    text = path.read_bytes()
    handle, temporary = tempfile.mkstemp(prefix=".demo-", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(b"A first line that an editor has added.\n" + text)
            file.flush()
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _write_mapped(path: Path) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[: min(16, len(mapping))] = b"written by mmap\n"[: len(mapping)]


def _has_user_xattrs(folder: Path) -> bool:
    """Whether the filesystem below the mount could take them: the reference copy lies there."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.name, "user.cowfs.demo", b"value")
        except OSError:
            return False
    return True
