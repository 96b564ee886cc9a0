"""What a checkpoint keeps besides the files, on a real mount: `cowfs show CHECKPOINT --session`."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from tests.cli.agent_shell import SESSION, going_on
from tests.cli.command import Cowfs
from tests.mount.calls import eventually
from tests.support.namespaces import elsewhere

USER = """
import fcntl, json, mmap, os, socket, sys
{work}
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """A directory of the shared workspace for one test."""
    top = workspace / str(request.node.name)
    top.mkdir()
    return top


@contextmanager
def user(work: str, cwd: Path, **environment: str) -> Iterator[int]:
    """A process that has done something and waits; its pid."""
    command = [sys.executable, "-c", USER.format(work=work)]
    pipe = subprocess.PIPE
    environment = {**os.environ, **environment}
    with subprocess.Popen(command, cwd=cwd, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.communicate(b"")


def kept(cowfs: Cowfs, cwd: Path | None = None, **environment: str) -> dict[str, Any]:
    """Make a checkpoint in an environment; what is kept with it."""
    command = cowfs.argv("checkpoint", "--json")
    done = subprocess.run(
        command, cwd=cwd or cowfs.cwd, env={**cowfs.env, **environment}, capture_output=True
    )
    made = json.loads(done.stdout)
    assert made["ok"], made
    return cowfs.ok("show", made["checkpoint"]["id"], "--session")


def files(document: dict[str, Any], pid: int) -> list[tuple[str, int, str]]:
    """(path, offset, how) of what a process had open."""
    modes = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
    return [
        (row["path"], row["offset"], modes[row["flags"] & os.O_ACCMODE])
        for row in document["files"]
        if row["pid"] == pid
    ]


# -- who asks -------------------------------------------------------------------------------


def test_who_asks(shared_cowfs: Cowfs, place: Path) -> None:
    document = kept(shared_cowfs, place, MARK="here", MARK_TOKEN="hunter2secret")
    assert document["kept"] is True
    assert document["cwd"] == str(place)
    assert document["environment"]["MARK"] == "here"
    assert document["environment"]["HOME"] == str(shared_cowfs.home)
    assert "MARK_TOKEN" in document["hidden"]
    assert "MARK_TOKEN" not in document["environment"]
    assert document["checkpoint"]["pid"] not in [row["pid"] for row in document["processes"]]
    me = next(row for row in document["processes"] if row["pid"] == os.getpid())
    assert me["cwd"] == os.getcwd()
    assert (document["session"], document["event"], document["conversation"]) == (None, "", None)
    assert document["missing"] == []


def test_no_secret_reaches_the_store(shared_cowfs: Cowfs, place: Path) -> None:
    secrets = {"ANY_TOKEN": "hunter2secret", "ANY_URL": "https://a:hunter2secret@b/"}
    document = kept(shared_cowfs, place, **secrets)
    ((_, store),) = shared_cowfs.mounts()
    opened = open_store(store, writable=False)
    try:
        with Reader(opened) as reader:
            value = reader.get("context", document["checkpoint"]["id"].encode())
    finally:
        opened.close()
    assert value is not None
    raw = zstandard.ZstdDecompressor().decompress(value)
    assert b"ANY_TOKEN" in raw
    assert b"hunter2secret" not in raw


def test_for_people(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "data").write_bytes(bytes(100))
    work = "f = os.open('data', os.O_RDWR); os.lseek(f, 42, 0); fcntl.flock(f, fcntl.LOCK_EX)"
    with user(work, place) as pid:
        kept(shared_cowfs, place, MARK="here", MARK_TOKEN="hunter2secret")
    text = shared_cowfs.says("show", "@~1", "--session")
    name = f"{place.name}/data"
    for expected in (
        f"  directory     {place}\n",
        f"  {name}  at 42, descriptor 3 of pid {pid} (read and write)\n",
        f"  {name}  FLOCK write, bytes 0 to the end, pid {pid}\n",
        "  MARK=here\n",
        "MARK_TOKEN",
    ):
        assert expected in text, text
    assert "hunter2secret" not in text


# -- open files -----------------------------------------------------------------------------


def test_open_files_with_offsets(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "a").write_bytes(bytes(100))
    (place / "b").write_bytes(bytes(100))
    work = """
a = os.open("a", os.O_RDWR); os.lseek(a, 7, 0)
b = os.open("b", os.O_RDONLY); os.read(b, 30)
c = os.open("c", os.O_WRONLY | os.O_CREAT | os.O_APPEND); os.write(c, bytes(11))
"""
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    name = place.name
    assert files(document, pid) == [
        (f"{name}/a", 7, "rw"),
        (f"{name}/b", 30, "r"),
        (f"{name}/c", 11, "w"),
    ]
    rows = {row["path"]: row for row in document["files"] if row["pid"] == pid}
    assert rows[f"{name}/c"]["flags"] & os.O_APPEND
    assert rows[f"{name}/a"]["ino"] == (place / "a").stat().st_ino
    (process,) = [row for row in document["processes"] if row["pid"] == pid]
    assert process["cwd"] == str(place)


def test_the_name_that_a_file_has_now(shared_cowfs: Cowfs, place: Path) -> None:
    for name in ("gone", "one", "odd (deleted)"):
        (place / name).touch()
    work = """
x = [os.open(name, os.O_RDONLY) for name in ("gone", "one", "odd (deleted)")]
os.unlink("gone"); os.rename("one", "two")
"""
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    top = place.name
    assert [path for path, _, _ in files(document, pid)] == [
        "",
        f"{top}/two",
        f"{top}/odd (deleted)",
    ]


def test_a_file_that_is_only_mapped(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "m").write_bytes(bytes(8192))
    work = "f = os.open('m', os.O_RDWR); m = mmap.mmap(f, 8192); os.close(f); m[0] = 1"
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    rows = [row for row in document["files"] if row["pid"] == pid]
    if sys.version_info < (3, 13):  # the module keeps a descriptor of its own
        assert [(row["path"], row["fd"] >= 0) for row in rows] == [(f"{place.name}/m", True)]


def test_a_mapping_without_any_descriptor(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "m").write_bytes(bytes(8192))
    work = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
f = os.open("m", os.O_RDWR)
at = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, f, ctypes.c_long(0))
assert at != ctypes.c_void_p(-1).value
ctypes.memset(at, 1, 1)
os.close(f)
"""
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    rows = [(row["path"], row["fd"]) for row in document["files"] if row["pid"] == pid]
    assert rows == [(f"{place.name}/m", -1)]


def test_what_is_elsewhere_is_not_told_of(shared_cowfs: Cowfs, place: Path, tmp_path: Path) -> None:
    """Beside the workspace, and in an old checkpoint."""
    (place / "f").touch()
    identity = shared_cowfs.ok("checkpoint")["checkpoint"]["id"]
    old = shared_cowfs.cwd / ".cowfs" / "checkpoints" / identity / place.name / "f"
    work = f"x = [os.open(n, os.O_RDONLY) for n in ({str(old)!r}, '/dev/null', {str(tmp_path)!r})]"
    with user(work, tmp_path) as pid:
        document = kept(shared_cowfs)
    assert files(document, pid) == []


def test_through_a_bind_mount_in_another_namespace(
    shared_cowfs: Cowfs, place: Path, tmp_path: Path
) -> None:
    """As in a container: another path leads to the same files."""
    (place / "deep").mkdir()
    (place / "deep" / "f").write_bytes(bytes(100))
    code = USER.format(work="f = os.open('f', os.O_RDONLY); os.lseek(f, 9, 0)")
    mounting = f'mount --bind "{place}/deep" "{tmp_path}" && cd "{tmp_path}" && exec "$@"'
    words = ["sh", "-c", mounting, "sh", sys.executable, "-c", code]
    command = elsewhere(shared_cowfs.cwd, words)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        document = kept(shared_cowfs)
        process.communicate(b"")
    if line != b"ready\n":
        pytest.skip("no mount namespace can be made here")
    assert files(document, process.pid) == [(f"{place.name}/deep/f", 9, "r")]
    assert process.pid in [row["pid"] for row in document["processes"]]


# -- locks, ports ---------------------------------------------------------------------------


def test_locks(shared_cowfs: Cowfs, place: Path) -> None:
    for name in ("flock", "posix", "ofd"):
        (place / name).write_bytes(bytes(100))
    work = """
import struct
one = os.open("flock", os.O_RDONLY); fcntl.flock(one, fcntl.LOCK_SH)
two = os.open("posix", os.O_RDWR); fcntl.lockf(two, fcntl.LOCK_EX, 10, 20)
three = os.open("ofd", os.O_RDWR)
fcntl.fcntl(three, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 5, 5, 0))  # F_OFD_SETLK
"""
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    rows = [row for row in document["locks"] if row["path"].startswith(f"{place.name}/")]
    found = [(r["path"], r["kind"], r["mode"], r["start"], r["end"], r["pid"]) for r in rows]
    top = place.name
    assert found == [
        (f"{top}/flock", "FLOCK", "READ", 0, -1, pid),
        (f"{top}/ofd", "OFDLCK", "WRITE", 5, 9, pid),
        (f"{top}/posix", "POSIX", "WRITE", 20, 29, pid),
    ]


def test_a_lock_that_its_taker_has_left_to_another(shared_cowfs: Cowfs, place: Path) -> None:
    """flock(2): it belongs to the open file, which a child has, too."""
    (place / "f").touch()
    work = """
fd = os.open("f", os.O_RDONLY); os.set_inheritable(fd, True)
if os.fork() == 0:
    fcntl.flock(fd, fcntl.LOCK_EX)
    os._exit(0)
os.wait()
"""
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    rows = [row for row in document["locks"] if row["path"] == f"{place.name}/f"]
    assert [(row["kind"], row["pid"]) for row in rows] == [("FLOCK", pid)]


def test_ports_of_those_that_work_in_it(shared_cowfs: Cowfs, place: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    work = f"s = socket.create_server(('127.0.0.1', {number}))"
    with user(work, place) as pid:
        document = kept(shared_cowfs)
    row = {"protocol": "tcp", "address": "127.0.0.1", "port": number, "pid": pid}
    assert row in document["ports"]


# -- which checkpoints ----------------------------------------------------------------------


def test_one_that_keeps_nothing(shared_cowfs: Cowfs, workspace: Path) -> None:
    start = shared_cowfs.ok("log", "-n", "0")["checkpoints"][-1]["id"]
    document = shared_cowfs.ok("show", start, "--session")
    assert (document["kept"], document["session"], document["files"]) == (False, None, [])
    text = shared_cowfs.says("show", start, "--session")
    assert text.endswith("  nothing is kept with it but the files\n")


def test_the_present_state_has_none(shared_cowfs: Cowfs, workspace: Path) -> None:
    assert shared_cowfs.fails("show", "@", "--session")["code"] == "COWFS_USAGE"
    assert shared_cowfs.fails("show", "nothing", "--session")["code"] == "COWFS_UNKNOWN_CHECKPOINT"


def test_when_it_is_not_mounted(cowfs: Cowfs, mounted: Path) -> None:
    made = cowfs.ok("checkpoint")["checkpoint"]["id"]
    cowfs.ok("unmount", mounted, cwd=cowfs.top)
    document = cowfs.ok("show", made, "--session")
    assert document["cwd"] == str(mounted)
    document = kept(cowfs, mounted, MARK="here", MARK_TOKEN="hunter2secret")
    assert (document["cwd"], document["environment"]["MARK"]) == (str(mounted), "here")
    assert "MARK_TOKEN" in document["hidden"]
    assert os.getpid() in [row["pid"] for row in document["processes"]]


# -- sessions -------------------------------------------------------------------------------

LINES = '{"type":"user"}\n{"type":"assistant"}\n'


def test_the_checkpoint_of_a_prompt(shared_cowfs: Cowfs, place: Path, tmp_path: Path) -> None:
    conversation = tmp_path / "talk.jsonl"
    conversation.write_text(LINES)
    secret = {"MARK": "here", "MARK_TOKEN": "hunter2secret"}
    with going_on(shared_cowfs, place, environment=secret) as agent:
        agent.runs("exec 9<> held; sleep 60 &")
        made = agent.tells(
            "prompt",
            cwd=str(place),
            transcript=str(conversation),
            prompt="add the tax",
            prompt_id="p1",
            title="Tax",
            background=2,
        )["checkpoint"]
        document = shared_cowfs.ok("show", made["id"], "--session")
        text = shared_cowfs.says("show", made["id"], "--session")
        agent.runs("kill %1")
    assert (document["session"]["id"], document["session"]["agent"]) == (SESSION, "other")
    assert document["session"]["state"] == "active"
    assert (document["event"], document["prompt"], document["prompt_id"]) == (
        "prompt",
        "add the tax",
        "p1",
    )
    talk = document["conversation"]
    assert (talk["bytes"], talk["files"][0]["path"]) == (len(LINES), str(conversation))
    assert document["background"] == 2
    assert document["cwd"] == str(place)
    assert document["environment"]["MARK"] == "here"
    assert {"MARK_TOKEN", "CLAUDE_CODE_SESSION_ID"} <= set(document["hidden"])
    commands = {row["pid"]: row["command"][0] for row in document["processes"]}
    assert commands[agent.pid] == "bash"
    assert "sleep" in commands.values()
    assert files(document, agent.pid) == [(f"{place.name}/held", 0, "rw")]
    for expected in (
        f"  session       {SESSION}  other, active\n",
        "  made at       prompt\n",
        "  prompt        add the tax\n",
        "  background    2 tasks going on\n",
        f"  {agent.pid}  bash  in {place}\n    ",
    ):
        assert expected in text, text


def test_before_a_tool_only_what_is_quick(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place) as agent:
        agent.runs("exec 9<> held")
        line = "curl -H 'Authorization: Bearer hunter2secret' x"
        made = agent.tells("tool-start", tool="Bash", tool_id="t1", tool_text=line)
        agent.tells("tool-end", tool="Bash", tool_id="t1")
        document = shared_cowfs.ok("show", made["checkpoint"]["id"], "--session")
    assert document["tool"]["id"] == "t1"
    assert [row["pid"] for row in document["processes"]] == [agent.pid]
    assert (document["files"], document["locks"], document["ports"]) == ([], [], [])
    assert document["environment"]["HOME"] == str(shared_cowfs.home)
    assert "hunter2secret" not in json.dumps(document)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_checkpoint_by_hand_in_a_session(
    shared_cowfs: Cowfs, place: Path, tmp_path: Path, quiet: bool
) -> None:
    """Its environment says so, or the process that it descends from."""
    conversation = tmp_path / "talk.jsonl"
    conversation.write_text(LINES)
    with going_on(shared_cowfs, place, quiet=quiet) as agent:
        agent.tells("prompt", transcript=str(conversation), prompt="now", prompt_id="p2")
        conversation.write_text(LINES * 2)
        command = " ".join(shlex.quote(word) for word in shared_cowfs.argv("checkpoint"))
        agent.runs(f"{command} > /dev/null")
        document = shared_cowfs.ok("show", "@~1", "--session")
    assert document["checkpoint"]["kind"] == "manual"
    assert document["checkpoint"]["session"] == document["session"]["id"] == SESSION
    assert (document["event"], document["prompt"]) == ("", "now")
    assert document["conversation"]["bytes"] == 2 * len(LINES)
    assert document["processes"][0]["pid"] == agent.pid


def test_one_of_somebody_else_is_of_no_session(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place):
        document = kept(shared_cowfs)
    assert document["session"] is None


def test_an_automatic_checkpoint(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    """It is of the only session that is going on, and has the conversation."""
    cowfs.env["COWFS_AUTOMATIC"] = "yes"
    conversation = cowfs.top / "talk.jsonl"
    conversation.write_text(LINES)
    cowfs.ok("mount", project)
    cowfs.cwd = project
    for setting in ("settle 100ms", "spacing off"):
        cowfs.ok("config", *f"checkpoints.{setting}".split())
    with going_on(cowfs, project) as agent:
        agent.tells("prompt", transcript=str(conversation), prompt="now", prompt_id="p3")
        conversation.write_text(LINES * 3)
        (project / "new").touch()
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            rows = cowfs.ok("log", "--all", "-n", "0")["checkpoints"]
            found[:] = [row for row in rows if row["kind"] == "auto"]
            return bool(found)

        eventually(is_there)
        document = cowfs.ok("show", found[0]["id"], "--session")
    assert (document["session"]["id"], document["prompt"]) == (SESSION, "now")
    assert document["conversation"]["bytes"] == 3 * len(LINES)
    assert document["processes"] == []
