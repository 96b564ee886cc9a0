"""The control socket: what a client sends to the daemon, what a daemon sends to a client, and the
texts by which commands find mounts and stores."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cowfs import mounts
from cowfs.client import places
from cowfs.client.rpc import Client, ConnectionFailedError, RpcError
from cowfs.daemon.control import SOCKET_NAME, ControlServer
from cowfs.daemon.options import mount_source
from tests.hostile.test_decoders import DOCUMENTS, mutated
from tests.support.mounting import Mounted, mounted

SHARED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DEEP = b"[" * 100_000
REQUEST = b'{"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"a": [1, "x"]}}'
ODD_TEXT = st.just("\ud800")
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.just("\ud800"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


# -- to the daemon ------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A server with one method; where its socket is."""
    listening = ControlServer(tmp_path, {"hello": lambda request: sorted(request.params)})
    listening.start()
    yield tmp_path
    listening.close()


def ask(store: Path, data: bytes) -> list[Any]:
    """The answers to what is sent, up to the end of the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
        connection.connect(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
        os.close(fd)
        sender = threading.Thread(target=_send, args=(connection, data))
        sender.start()
        with connection.makefile("rb") as lines:
            found = [json.loads(line) for line in lines]
        sender.join()
    return found


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it may end the connection before it has all
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


LINES = st.one_of(
    st.binary(max_size=300).map(lambda data: data.replace(b"\n", b"")),
    mutated(st.just(REQUEST)).map(lambda data: data.replace(b"\n", b"")),
    st.dictionaries(st.sampled_from(("id", "method", "params", "jsonrpc")), VALUES, max_size=4).map(
        lambda value: json.dumps(value).encode()
    ),
)


@SHARED
@given(LINES)
@example(DEEP)
@example(b'{"id": ' + DEEP)
@example(b'{"id": ' + b"9" * 10_000 + b"}")
@example(b'{"method": {"a": 1}, "id": [1]}')
@example(b'{"method": "hello", "params": [1]}')
def test_any_line_is_answered(server: Path, line: bytes) -> None:
    """With a result, or COWFS_USAGE; and the connection goes on."""
    answers = ask(server, line + b"\n" + REQUEST + b"\n")
    assert answers[-1]["result"] == ["a"]
    for answer in answers[:-1]:
        assert "result" in answer or answer["error"]["data"]["code"] == "COWFS_USAGE"
    assert len(answers) == 2


def test_a_line_without_end(server: Path) -> None:
    """It is cut; what is left over is no request either."""
    answers = ask(server, b"x" * (40 << 20))
    assert {answer["error"]["data"]["code"] for answer in answers} == {"COWFS_USAGE"}
    assert ask(server, REQUEST)[0]["result"] == ["a"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    from tests.support.mounting import fuse_missing

    if reason := fuse_missing():
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("hostile") / "base"
    base.mkdir()
    (base / "f").write_bytes(b"f")
    with mounted(base) as mount:
        yield mount


METHODS: dict[str, list[str]] = {
    "status": ["flush"],
    "checkpoint": ["message", "label"],
    "restore": ["checkpoint", "paths", "exclude"],
    "undo": [],
    "redo": [],
    "flush": [],
    "apply": ["dry_run"],
    "seal": ["paths", "rate", "idle"],
}
DOCUMENTED = {
    "",
    "COWFS_USAGE",
    "COWFS_BAD_LABEL",
    "COWFS_LABEL_IN_USE",
    "COWFS_LABEL_BESIDE",
    "COWFS_UNKNOWN_CHECKPOINT",
    "COWFS_AMBIGUOUS_CHECKPOINT",
    "COWFS_UNKNOWN_PATH",
    "COWFS_NOTHING_TO_UNDO",
}


@settings(SHARED, max_examples=250)
@given(st.data())
def test_any_parameters_of_the_methods(daemon: Mounted, data: st.DataObject) -> None:
    """Answered, or refused with a documented error: never with COWFS_INTERNAL, and the daemon's log
    has no error afterwards (the fixture looks)."""
    method = data.draw(st.sampled_from(sorted(METHODS)))
    names = METHODS[method]
    values = st.one_of(
        VALUES,
        st.lists(st.text(max_size=10), max_size=3),
        st.sampled_from(
            ["@", "@~1", "f", ["f"], "../..", "\0", "x" * 600, ["x" * 600], ["f/" * 600]]
        ),
    )
    params = {name: data.draw(values, label=name) for name in names if data.draw(st.booleans())}
    if method == "apply":
        params["dry_run"] = True  # an apply of a mount in place is for others to test
    code = ""
    try:
        daemon.call(method, **params)
    except RpcError as error:
        code = error.error["code"]
    assert code in DOCUMENTED, (method, params)


# -- from a daemon ------------------------------------------------------------------------------

ANSWERS = st.one_of(
    st.binary(max_size=200),
    mutated(st.just(b'{"id": 1, "error": {"message": "m", "data": {"message": "m"}}}')),
    st.dictionaries(st.sampled_from(("id", "error", "result", "params")), VALUES).map(
        lambda value: json.dumps(value).encode()
    ),
)


@SHARED
@given(ANSWERS)
@example(DEEP)
@example(b'{"id": 1, "error": 5}')
@example(b'{"id": 1, "error": {"data": {"code": 1}}}')
@example(b"[]")
def test_any_answer_of_a_daemon(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / SOCKET_NAME
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                connection.sendall(answer + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        message: object = ""
        try:
            with Client(str(tmp_path), timeout=30) as client:
                client.call("status", progress=lambda params: None)
        except RpcError as error:
            message = error.error["message"]
        except ConnectionFailedError:
            pass
        finally:
            thread.join()
    assert isinstance(message, str)


# -- how commands find things -------------------------------------------------------------------


@SHARED
@given(st.text(max_size=60))
def test_escapes_of_mountinfo(text: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in text)
    assert mounts.unescape(escaped) == text
    mounts.unescape(text)


@SHARED
@given(st.binary(max_size=60), st.text(max_size=60))
def test_sources_of_mounts(path: bytes, text: str) -> None:
    """What the daemon writes comes back; anybody else's source does no harm."""
    with contextlib.suppress(UnicodeEncodeError):
        assert isinstance(places._unquote(text), str)
    store = os.fsdecode(path.replace(b"\0", b""))
    assert places._unquote(mount_source(store)) == store


@SHARED
@given(st.text(max_size=200))
@example("36 35 98:0 / /mnt rw - fuse.cowfs")
@example("36 35 98:0 / /mnt rw shared:1 - fuse.cowfs %zz rw")
@example("- - - - - - -")
def test_lines_of_mountinfo(text: str) -> None:
    row = text.split(" ")
    with contextlib.suppress(ValueError, IndexError):
        mounts.Mount(row, row.index("-", 6))


@SHARED
@given(DOCUMENTS)
@example(b'{"workspaces": 5}')
@example(b'{"workspaces": [{"base": "/b\\u0000", "mountpoint": "/b", "store": "/s"}]}')
@example(b'{"workspaces": [{"base": "/\\ud800", "mountpoint": "/b", "store": "/s"}]}')
@example(b'{"workspaces": [{"base": "b", "mountpoint": "/b", "store": "/s"}]}')
def test_the_registry(tmp_path: Path, text: bytes) -> None:
    """What it gives are absolute paths that the system can be asked about."""
    (tmp_path / "workspaces.json").write_bytes(text)
    for row in places.registry(str(tmp_path)):
        for name in ("base", "mountpoint", "store"):
            assert not os.path.lexists(row[name] + "/nothing is there")
    (tmp_path / "workspace.json").write_bytes(text)
    places.base_of(str(tmp_path))
    (tmp_path / "daemon.pid").write_bytes(text)
    assert places.daemon_is_stopped(str(tmp_path)) is False
