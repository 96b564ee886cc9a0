"""Several programs at work at once, with checkpoints meanwhile and a restore after each round."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.support.listing import difference, listing, portable
from tests.support.mounting import Mounted
from tests.tools.test_git import git_environment
from tests.tools.tool import SECONDS, changes, export, need, run, started

ROUNDS = 3
STEPS = 6
"""Turns of each program in a round."""
EVERY = 4
"""A checkpoint is made each time that this many turns are done."""

# Each program works in the directory that it is started in, prints a line after each turn, and
# finds its directory in any state that a checkpoint has caught.
_GIT = f"""
set -e
rm -f .git/*.lock .git/refs/heads/*.lock
[ -d .git ] || git init -q -b main .
git fsck --full --no-dangling --no-progress 1>&2
for turn in $(seq {STEPS}); do
    mkdir -p d$turn
    for file in $(seq 15); do echo "$turn $file $RANDOM" >d$turn/f$file; done
    git add -A
    git commit -q -m "turn $turn"
    [ $((turn % 3)) != 0 ] || git gc -q
    [ -z "$(git status --porcelain)" ]
    echo turn
done
"""
_TAR = f"""
set -e
rm -rf out* *.tar
mkdir -p in
for turn in $(seq {STEPS}); do
    for file in $(seq 20); do head -c $((file * 500)) /dev/urandom >in/f$file; done
    tar -cf $turn.tar in
    mkdir out$turn
    tar -xf $turn.tar -C out$turn
    diff -r in out$turn/in
    rm $turn.tar
    echo turn
done
"""
_REMOVE = f"""
set -e
for turn in $(seq {STEPS}); do
    rm -rf tree other
    mkdir -p tree/a/b/c
    for file in $(seq 40); do
        echo $file >tree/a/b/f$file
        ln tree/a/b/f$file tree/a/b/c/l$file
    done
    cp -a tree other
    diff -r tree other
    rm -rf tree
    mv other/a/b other/a/moved
    echo turn
done
"""
_SQLITE = f"""
import sqlite3, sys
db = sqlite3.connect("database", timeout=60, isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
db.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, filler)")
for turn in range({STEPS}):
    for _ in range(5):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO rows (filler) VALUES (?)", [(b"x" * 500,)] * 10)
        db.execute("COMMIT")
    print("turn", flush=True)
"""
_PROGRAMS = {
    "git": ["bash", "-c", _GIT],
    "tar": ["bash", "-c", _TAR],
    "remove": ["bash", "-c", _REMOVE],
    "sqlite": [sys.executable, "-c", _SQLITE],
}


def _round(workspace: Mounted, env: dict[str, str], log: Path) -> list[str]:
    """All programs to their ends; the checkpoints made meanwhile."""
    checkpoints, turns = [], 0
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        errors = stack.enter_context(open(log, "ab"))
        processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, words in _PROGRAMS.items():
            place = workspace.mountpoint / name
            place.mkdir(exist_ok=True)
            process = stack.enter_context(started(words, place, env, stderr=errors.fileno()))
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            processes[name] = process
        while selector.get_map():
            for key, _ in selector.select(SECONDS):
                said = os.read(key.fd, 1 << 16)
                if not said:
                    selector.unregister(key.fileobj)
                for _ in range(said.count(b"turn\n")):
                    turns += 1
                    if turns % EVERY == 0:
                        checkpoints.append(workspace.checkpoint(f"after {turns} turns"))
        for name, process in processes.items():
            assert process.wait(SECONDS) == 0, (name, log.read_text())
    assert turns == STEPS * len(_PROGRAMS), log.read_text()
    return checkpoints


def test_soak(workspace: Mounted, tmp_path: Path) -> None:
    for program in ("bash", "git", "tar", "diff"):
        need(program)
    env = git_environment(tmp_path / "home")
    top = workspace.mountpoint
    for number in range(ROUNDS):
        checkpoints = _round(workspace, env, tmp_path / "log")
        end = listing(top)
        caught = checkpoints[len(checkpoints) // 2]
        plain = export(workspace, caught, tmp_path / f"export{number}")
        workspace.restore(caught)
        assert changes(workspace) == (0, 0, 0)
        assert difference(portable(listing(plain)), portable(listing(top))) == []
        shutil.rmtree(plain)
        run(["git", "fsck", "--full", "--no-dangling", "--no-progress"], top / "git", env)
        with closing(sqlite3.connect(top / "sqlite" / "database")) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("SELECT count(*) % 10 FROM rows").fetchone() == (0,)
        workspace.call("undo")
        assert difference(end, listing(top)) == []
        # The next round starts from a state that no program has left on purpose.
        workspace.restore(caught)
