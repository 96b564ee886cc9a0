"""Programs in a room reach nothing of the user's, and leave nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import isolation
from tests.clients.isolation import NoRoomError, Room
from tests.conftest import MountFunction

_CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
        print(connection.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(params=[False, True], ids=["as it is", "by a user namespace"])
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    try:
        room = Room(as_user=request.param)
    except NoRoomError as error:
        pytest.skip(str(error))
    with room:
        yield room


def run(room: Room, *words: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    done = subprocess.run(
        room.command(words),
        cwd=cwd,
        pass_fds=room.descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == code
    return done.stdout.strip()


def connect(room: Room, port: int, host: str = "127.0.0.1") -> str:
    return run(room, sys.executable, "-c", _CONNECT, host, str(port))


def test_only_what_listens_in_the_room_is_reached(room: Room) -> None:
    def greet() -> None:
        connection, _ = room.listener.accept()
        with connection:
            connection.sendall(b"hello")

    thread = threading.Thread(target=greet)
    thread.start()
    assert connect(room, room.listener.getsockname()[1]) == "hello"
    thread.join()
    with socket.create_server(("127.0.0.1", 0)) as outside:
        assert connect(room, outside.getsockname()[1]) == "ConnectionRefusedError"
    # RFC 5737: a network for examples. There is no way out, so not even a packet is sent.
    assert connect(room, 80, "192.0.2.1") == "OSError"


def test_the_user_stays_and_the_settings_are_hidden(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text("{}")
    (tmp_path / ".claude.json").write_text("{}")
    (tmp_path / "other").write_text("seen")
    script = 'id -u; ls -A "$0/.claude"; cat "$0/.claude.json"; cat "$0/other"'
    assert run(room, "/bin/sh", "-c", script, tmp_path).split() == [str(os.getuid()), "seen"]
    assert (tmp_path / ".claude.json").read_text() == "{}"
    assert (tmp_path / ".claude" / "settings.json").exists()


def test_other_workspaces_are_let_go_of(room: Room, mount: MountFunction, base: Path) -> None:
    """So that they can be unmounted while an agent works elsewhere."""
    top = mount(base).mountpoint
    inside = run(room, "/bin/cat", "/proc/self/mountinfo", cwd=top)
    assert f" {top} " in inside
    if len(room.descriptors) == 1:
        assert f" {top} " not in run(room, "/bin/cat", "/proc/self/mountinfo")


def test_the_exit_code_and_what_it_leaves(room: Room, tmp_path: Path) -> None:
    assert run(room, "/bin/sh", "-c", "exit 3", code=3) == ""
    assert run(room, "/bin/sh", "-c", "kill -KILL $$", code=128 + 9) == ""
    # An orphan in a session of its own.
    pid = run(room, "/bin/sh", "-c", "setsid sleep 1000 >&- & echo $!")
    assert not Path(f"/proc/{pid}").exists()


def test_terminated_with_all_that_it_started(room: Room) -> None:
    words = room.command(["/bin/sh", "-c", "sleep 1000 & echo $!; wait"])
    with subprocess.Popen(words, pass_fds=room.descriptors, stdout=subprocess.PIPE) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        (shell,) = isolation.children(process.pid)
        assert pid in isolation.children(shell)
        process.terminate()
        assert process.wait(20) == 128 + 15
    assert not Path(f"/proc/{pid}").exists()
