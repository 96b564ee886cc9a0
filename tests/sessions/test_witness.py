"""What is kept with a checkpoint that somebody asked for: looked at after the answer."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cowfs.client.rpc import Client
from cowfs.daemon.control import ControlServer, Request
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import ENDED, ContextRecord, SessionRecord
from cowfs.service import removing
from cowfs.service.checkpoint import checkpoint
from cowfs.service.sessions import liveness, reading, witness
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.witness import Caller, Witness
from cowfs.store.snapshot import Reader
from cowfs.volume.history import Author
from tests.audit.acting import sleeper, sleeper_with
from tests.support.volumes import Rig

SESSION = "5f0c12ab-0000-4000-8000-000000000001"
ME = Author(os.geteuid(), "tester", os.getpid(), "test")


@pytest.fixture
def registry(volume: Rig) -> Registry:
    return Registry(volume.engine)


@pytest.fixture
def watching(volume: Rig, registry: Registry) -> Witness:
    return Witness(volume.engine, threading.RLock(), registry)


def context(rig: Rig, made: CheckpointRecord) -> ContextRecord | None:
    with Reader(rig.volume.store) as reader:
        return reading.context(reader, made.id)


def make(rig: Rig, caller: Caller) -> CheckpointRecord:
    session = caller.session.id if caller.session is not None else ""
    return checkpoint(rig.engine, ME, session=session)


def session(registry: Registry, pid: int = 0) -> SessionRecord:
    born = liveness.born(pid) if pid else 0
    record = SessionRecord(SESSION, "other", pid=pid, born=born, boot=liveness.boot_id())
    return registry.put(msgspec.structs.replace(record, prompt="add the tax"))


# -- who asks -------------------------------------------------------------------------------


def test_who_asks(watching: Witness) -> None:
    caller = watching.meet(ME)
    assert (caller.pid, caller.session, caller.missing) == (os.getpid(), None, ())
    assert caller.cwd == os.fsencode(os.getcwd())
    assert caller.environment["PATH"] == os.environ["PATH"]
    assert caller.root not in (0, 1, os.getpid())


def test_one_that_is_alone_in_its_terminal(watching: Witness) -> None:
    """It belongs to who started it."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            assert watching.meet(Author(pid=process.pid)).root == os.getpid()
        finally:
            process.kill()


def test_one_that_is_gone(watching: Witness) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    caller = watching.meet(Author(pid=process.pid))
    assert (caller.root, caller.environment, caller.cwd) == (0, {}, b"")
    assert len(caller.missing) == 1


def test_its_environment_names_the_session(watching: Witness, registry: Registry) -> None:
    known = session(registry)
    environment = {"CLAUDE_CODE_SESSION_ID": SESSION}
    with sleeper_with(environment) as pid:
        assert watching.meet(Author(pid=pid)).session == known
        registry.put(msgspec.structs.replace(known, state=ENDED))
        assert watching.meet(Author(pid=pid)).session is None


@pytest.mark.parametrize("name", ["", "x" * 600, "a\nb", "\udcff", "another"])
def test_what_names_no_session(watching: Witness, registry: Registry, name: str) -> None:
    """Anybody can set a variable."""
    session(registry)
    with sleeper_with({"CLAUDE_CODE_SESSION_ID": name}) as pid:
        assert watching.meet(Author(pid=pid)).session is None


def test_it_descends_from_the_process_of_a_session(watching: Witness, registry: Registry) -> None:
    known = session(registry, os.getpid())
    with sleeper() as pid:
        caller = watching.meet(Author(pid=pid))
    assert (caller.session, caller.root) == (known, os.getpid())


# -- what is kept ---------------------------------------------------------------------------


def test_it_is_stored_later(volume: Rig, watching: Witness, registry: Registry) -> None:
    session(registry, os.getpid())
    caller = watching.meet(ME)
    made = make(volume, caller)
    later = watching.later(made, caller)
    assert context(volume, made) is None
    later()
    found = context(volume, made)
    assert found is not None
    assert (found.session, found.prompt, found.event) == (SESSION, "add the tax", "")
    assert found.cwd == os.fsencode(os.getcwd())
    assert ("PATH", os.environ["PATH"]) in found.environment


def test_a_checkpoint_that_was_removed_meanwhile(volume: Rig, watching: Witness) -> None:
    """Nothing may be left of it: the end of the test verifies the store."""
    caller = watching.meet(ME)
    made = make(volume, caller)
    later = watching.later(made, caller)
    removing.forget(volume.engine, threading.RLock(), [made.id])
    later()
    assert context(volume, made) is None


def test_whoever_reads_waits_for_it(volume: Rig, watching: Witness) -> None:
    caller = watching.meet(ME)
    made = make(volume, caller)
    later = watching.later(made, caller)
    done = threading.Event()

    def read() -> None:
        watching.wait()
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    later()
    thread.join()
    assert done.is_set()
    watching.wait()  # there is nothing to wait for


def test_not_for_ever(volume: Rig, watching: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_WAIT_SECONDS", 0.01)
    caller = watching.meet(ME)
    later = watching.later(make(volume, caller), caller)
    watching.wait()
    later()


def test_a_look_that_fails_does_not_keep_anybody_waiting(
    volume: Rig, watching: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no more descriptors")

    monkeypatch.setattr(witness, "look_around", fail)
    monkeypatch.setattr(witness, "_WAIT_SECONDS", 60.0)
    caller = watching.meet(ME)
    later = watching.later(make(volume, caller), caller)
    with pytest.raises(OSError, match="no more descriptors"):
        later()
    watching.wait()


# -- checkpoints that nobody asked for ------------------------------------------------------


def test_of_the_only_session(watching: Witness, registry: Registry) -> None:
    assert watching.automatic()[:2] == ("", b"")
    session(registry, os.getpid())
    name, value, _ = watching.automatic()
    assert name == SESSION
    assert value
    with sleeper() as pid:
        other = SessionRecord("other", "x", pid=pid, born=liveness.born(pid))
        registry.put(msgspec.structs.replace(other, boot=liveness.boot_id()))
        assert watching.automatic()[:2] == ("", b"")
    assert watching.automatic()[0] == SESSION


# -- the socket -----------------------------------------------------------------------------


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_the_answer_comes_before_what_is_left_to_do(
    tmp_path: Path, release: threading.Event
) -> None:
    order = []
    finished = threading.Event()

    def method(request: Request) -> str:
        def work() -> None:
            release.wait()
            order.append("work")
            finished.set()

        request.afterwards = work
        return "answer"

    server = ControlServer(tmp_path, {"method": method})
    server.start()
    try:
        with Client(str(tmp_path), timeout=60) as client:
            order.append(client.call("method"))
        release.set()
        finished.wait()
        assert order == ["answer", "work"]
    finally:
        server.close()


def test_it_is_done_although_nobody_waits_for_the_answer(tmp_path: Path) -> None:
    finished, asked = threading.Event(), threading.Event()

    def method(request: Request) -> str:
        request.afterwards = finished.set
        asked.wait()
        return "x" * (1 << 22)  # more than a socket holds

    server = ControlServer(tmp_path, {"method": method})
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "control.sock"))
            client.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "method"}\n')
        asked.set()
        assert finished.wait(60)
    finally:
        server.close()
