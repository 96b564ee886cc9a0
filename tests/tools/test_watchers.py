"""inotify sees ordinary changes made through the mount as it does on an ordinary file system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
