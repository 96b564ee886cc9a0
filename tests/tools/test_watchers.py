"""inotify sees ordinary changes made through the mount as it does on an ordinary file system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import need, run, started

_EVENTS = "create,modify,attrib,move,delete,delete_self,close_write"


def _ordinary_changes(top: Path) -> None:
    """What people and programs do all day."""
    (top / "file").write_text("one")
    with open(top / "file", "a") as file:
        file.write("two")
    os.chmod(top / "file", 0o600)
    os.utime(top / "file", (1, 1))
    os.setxattr(top / "file", "user.note", b"x")
    os.rename(top / "file", top / "moved")
    (top / "new").write_text("new")
    os.rename(top / "new", top / "moved")
    os.link(top / "moved", top / "linked")
    os.symlink("moved", top / "symbolic")
    os.truncate(top / "moved", 1)
    (top / "directory" / "below").write_text("below")
    os.rename(top / "directory" / "below", top / "above")
    os.rename(top / "directory", top / "other")
    (top / "other" / "last").touch()
    for name in ("linked", "moved", "symbolic", "above", "other/last"):
        (top / name).unlink()
    (top / "other").rmdir()


def _watch(top: Path, env: dict[str, str]) -> list[str]:
    """The events that inotifywait reports of `_ordinary_changes`."""
    (top / "directory").mkdir()
    words = ["inotifywait", "-m", "-r", "--format", "%e %w%f", "-e", _EVENTS, "."]
    with started(words, top, env, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"Watches established"):
                break
        _ordinary_changes(top)
        (top / "the end").touch()
        events: list[str] = []
        for line in process.stdout:
            event = os.fsdecode(line.rstrip(b"\n"))
            if "the end" in event:
                break
            # The kernel merges equal events that follow each other before they are read.
            if [event] != events[-1:]:
                events.append(event)
    (top / "the end").unlink()
    return events


def test_inotifywait(workspace: Mounted, plain: Path, env: dict[str, str]) -> None:
    need("inotifywait")
    expected = _watch(plain, env)
    assert "MOVED_TO ./moved" in expected
    assert "CREATE ./directory/below" in expected
    assert _watch(workspace.mountpoint, env) == expected
    # Nor is anything else seen when a checkpoint is made.
    assert _watch_a_checkpoint(workspace, env) == []


def _watch_a_checkpoint(workspace: Mounted, env: dict[str, str]) -> list[str]:
    top = workspace.mountpoint
    with open(top / "held", "w") as held:
        held.write("dirty")
        held.flush()
        words = [
            "inotifywait",
            "-m",
            "-r",
            "--format",
            "%e %w%f",
            "-e",
            "modify,create,delete",
            ".",
        ]
        with started(words, top, env, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(b"Watches established"):
                    break
            workspace.checkpoint()
            (top / "the end").touch()
            events = []
            for line in process.stdout:
                if line.rstrip() == b"CREATE ./the end":
                    break
                events.append(os.fsdecode(line))
    return events


_NODE = """
const fs = require("fs");
const seen = new Set();
fs.watch(".", (kind, name) => {
  seen.add(name);
  if (name === "last") { console.log([...seen].sort().join(" ")); process.exit(0); }
});
fs.writeFileSync("first", "1");
fs.renameSync("first", "second");
fs.appendFileSync("second", "2");
fs.unlinkSync("second");
fs.writeFileSync("last", "3");
"""


def test_node_watch(workspace: Mounted, env: dict[str, str]) -> None:
    node = need("node")
    assert run([node, "-e", _NODE], workspace.mountpoint, env).split() == [
        "first",
        "last",
        "second",
    ]


# As editors use them: libraries that keep a list of a whole tree and tell of each difference.
_LIBRARIES = {
    "chokidar@4": """
const chokidar = require("chokidar");
const watcher = chokidar.watch(process.argv[1], { ignoreInitial: true });
const tell = (kind, path) => console.log(kind + " " + path);
watcher.on("add", p => tell("new", p)).on("addDir", p => tell("new", p));
watcher.on("change", p => tell("changed", p));
watcher.on("unlink", p => tell("gone", p)).on("unlinkDir", p => tell("gone", p));
watcher.on("ready", () => console.log("ready"));
""",
    "@parcel/watcher@2": """
const watcher = require("@parcel/watcher");
const kinds = { create: "new", update: "changed", delete: "gone" };
watcher.subscribe(process.argv[1], (error, events) => {
  for (const event of events) console.log(kinds[event.type] + " " + event.path);
}).then(() => console.log("ready"));
""",
}


@pytest.mark.parametrize("library", _LIBRARIES)
def test_a_restore_as_editors_see_it(
    workspace: Mounted, env: dict[str, str], tmp_path: Path, library: str
) -> None:
    """Every file that changed, appeared or went is told, and no other (row R5)."""
    node, npm = need("node"), need("npm")
    place = tmp_path / "library"
    place.mkdir()
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", library],
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    if installed.returncode != 0:
        pytest.skip(f"{library} cannot be installed: no registry of npm")
    top = workspace.mountpoint
    (top / "src" / "deep").mkdir(parents=True)
    for name in ("same", "changed", "gone", "src/same", "src/changed", "src/deep/gone"):
        (top / name).write_text("one\n")
    checkpoint = workspace.checkpoint()
    for name in ("changed", "src/changed"):
        (top / name).write_text("two, longer\n")
    for name in ("gone", "src/deep/gone"):
        (top / name).unlink()
    for name in ("new", "src/deep/new"):
        (top / name).write_text("new\n")
    right = {"changed changed", "changed src/changed", "new gone", "new src/deep/gone"}
    right |= {"gone new", "gone src/deep/new"}
    with started([node, "-e", _LIBRARIES[library], top], place, env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        workspace.restore(checkpoint)
        told: set[str] = set()
        while "new end" not in told:
            if told >= right and not (top / "end").exists():
                (top / "end").touch()  # what came before it has been told then
            kind, _, path = process.stdout.readline().decode().strip().partition(" ")
            told.add(f"{kind} {os.path.relpath(path, top)}")
    # A file that came may be told as changed, too, as when a program makes and then writes it.
    twice = {"changed gone", "changed src/deep/gone", "changed end"}
    assert told - twice == right | {"new end"}
