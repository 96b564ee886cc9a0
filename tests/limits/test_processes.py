"""A daemon whose user may have no further process or thread (RLIMIT_NPROC; it is not for root)."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cowfs.client.rpc import Client, RpcError
from tests.mount.calls import NOBODY, in_child
from tests.mount.mounts import interpreter_for, need_users_mounts, shared_mount
from tests.support.mounting import Mounted


@pytest.fixture
def users_mount() -> Iterator[Mounted]:
    need_users_mounts()
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    base = top / "base"
    base.mkdir()
    for path in (top, base):
        os.chown(path, NOBODY, NOBODY)
    try:
        with (
            interpreter_for(NOBODY, top) as interpreter,
            shared_mount(base, uid=NOBODY, interpreter=interpreter) as mounted,
        ):
            yield mounted
    finally:
        shutil.rmtree(top)


@contextmanager
def no_process_left(pid: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (soft, hard))


def code_of(client: Client, method: str, **params: object) -> str:
    try:
        client.call(method, params)
    except RpcError as error:
        return str(error.error["code"])
    return ""


def test_a_full_process_table(users_mount: Mounted) -> None:
    """What needs a thread or a program is refused with an error that says so; the files go on, and
    so does everything when there is room again."""
    mounted, top = users_mount, users_mount.mountpoint

    def refused_at_once() -> None:
        with mounted.client() as client:
            assert code_of(client, "status") == "COWFS_LIMIT"

    def body() -> None:
        (top / "other").write_bytes(b"before")
        with (
            open(top / "f", "wb", buffering=0) as file,
            mounted.client() as client,
        ):
            file.write(b"one")
            first = client.call("checkpoint")["checkpoint"]["id"]
            file.write(b"two")
            with no_process_left(mounted.pid):
                assert code_of(client, "status") == ""
                refused_at_once()
                assert code_of(client, "checkpoint") == "COWFS_LIMIT"
                assert code_of(client, "restore", checkpoint=first) == "COWFS_LIMIT"
                assert code_of(client, "unmount") == "COWFS_UNMOUNT_FAILED"
                file.write(b"three")
                os.fsync(file.fileno())
                (top / "made").write_bytes(b"meanwhile")
            assert (top / "f").read_bytes() == b"onetwothree"
            assert code_of(client, "checkpoint") == ""
            refused = len(client.call("status")["health"]["problems"])
            assert refused == 0
            client.call("restore", {"checkpoint": first})
            assert (top / "f").read_bytes() == b"one"
            client.call("undo")
            assert (top / "made").read_bytes() == b"meanwhile"
            assert (top / "f").read_bytes() == b"onetwothree"

    in_child(body, uid=NOBODY)
