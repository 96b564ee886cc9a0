"""Sealing: the base's content comes into the store, and nothing outside can damage history then."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import UnknownPathError
from cowfs.service import sealing as service
from cowfs.service.sealing import Pace, Sealed, sealing_state
from cowfs.store.snapshot import Reader
from cowfs.types import BLOCK_SIZE
from cowfs.volume import sealing
from tests.support.volumes import START, Rig, errno_of
from tests.volume.test_history import fill_base

B = BLOCK_SIZE
OpenRig = Callable[[], Rig]


def seal(rig: Rig, *paths: bytes, pace: Pace | None = None) -> Sealed:
    return service.seal(rig.engine, list(paths), pace or Pace(), lambda **_: None)


def left(rig: Rig) -> dict[str, int]:
    rig.volume.sync()
    return sealing_state(rig.volume.reader)


def test_everything(open_rig: OpenRig, base: Path) -> None:
    """Also what only an older state has. After it the base may go; every state is whole."""
    fill_base(base)
    (base / "gone").write_bytes(os.urandom(3 * B + 1))
    (base / "never looked into").mkdir()
    (base / "never looked into" / "f").write_text("f")
    rig = open_rig()
    tree = rig.tree()
    rig.unlink(b"gone")
    rig.checkpoint()
    done = seal(rig)
    assert done.complete
    assert (done.unsealed, done.lost, done.problems) == (0, 0, [])
    assert left(rig) == {"unsealed": 0, "lost": 0}
    assert seal(rig).files == 0
    rig.close()
    shutil.rmtree(base)
    base.mkdir()
    rig.start()
    assert rig.ls() == []
    assert "lost" not in {kind for kind, _ in rig.problems()}
    rig.restore(START)
    now = rig.tree()
    assert {path: f.content for path, f in now.items()} == {
        path: f.content for path, f in tree.items()
    }
    rig.volume.base = None
    assert rig.read(b"gone") == tree[b"gone"].content


def test_what_was_written_here_stays(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_bytes(b"old" * B)
    rig = open_rig()
    rig.write(b"f", b"new", B)
    rig.truncate(b"f", 2 * B)
    content = rig.read(b"f")
    assert seal(rig).complete
    (base / "f").unlink()
    assert rig.volume.base is not None
    rig.volume.base.forget()
    assert rig.read(b"f") == content
    rig.truncate(b"f", 3 * B)
    assert rig.read(b"f") == content + bytes(B), "what was cut off does not come back"
    rig.restore(START)
    assert rig.read(b"f") == b"old" * B


def test_only_some_paths(open_rig: OpenRig, base: Path) -> None:
    (base / "d" / "e").mkdir(parents=True)
    for name in ("f", "g", "d/f", "d/e/f"):
        (base / name).write_text(name)
    rig = open_rig()
    assert seal(rig, b"g", b"d").files == 3
    assert left(rig) == {"unsealed": 1, "lost": 0}
    with pytest.raises(UnknownPathError):
        seal(rig, b"d/missing")


def test_holes_are_neither_read_nor_stored(open_rig: OpenRig, base: Path) -> None:
    """A file of a terabyte with two pieces of data."""
    size = 1 << 40
    with open(base / "sparse", "wb") as file:
        file.write(b"begin")
        file.seek(size // 2)
        file.write(b"middle")
        file.truncate(size)
    rig = open_rig()
    before = rig.record_counts()["extent"]
    done = seal(rig)
    assert done.complete
    assert done.bytes <= 2 * B
    assert rig.record_counts()["extent"] - before <= 2
    os.truncate(base / "sparse", 0)
    assert rig.volume.base is not None
    rig.volume.base.forget()
    handle = rig.open(b"sparse")
    assert handle.read(0, 8) == b"begin\0\0\0"
    assert handle.read(size // 2 - 2, 10) == b"\0\0middle\0\0"
    assert handle.read(size - 5, 10) == bytes(5)
    handle.close()


def test_a_run_that_is_stopped_is_continued(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a file, too: what was committed is not read again."""
    content = os.urandom(20 * B)
    (base / "f").write_bytes(content)
    monkeypatch.setattr(service, "_COMMIT_BYTES", 4 * B)
    monkeypatch.setattr(service, "_PORTION_BLOCKS", 2)
    rig = open_rig()
    stop = threading.Event()

    def progress(**params: object) -> None:
        if int(str(params["bytes"])) >= 10 * B:
            stop.set()

    monkeypatch.setattr(service, "_TELL_SECONDS", -1.0)
    done = service.seal(rig.engine, [], Pace(stop=stop), progress)
    assert not done.complete
    assert (done.files, done.bytes, done.unsealed) == (0, 10 * B, 1)
    rig.reopen()
    done = seal(rig)
    assert done.complete
    assert (done.files, done.bytes) == (1, 10 * B)
    (base / "f").unlink()
    assert rig.volume.base is not None
    rig.volume.base.forget()
    assert rig.read(b"f") == content


def test_changed_while_it_is_read(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that may be mixed are not stored: the old content is lost and named, the new one is
    adopted."""
    (base / "f").write_bytes(b"old" * B)
    rig = open_rig()
    rig.tree()
    read = sealing.read
    edits = iter([b"new" * B])

    def read_during_an_edit(
        fd: int, what: sealing.Source, first: int, count: int
    ) -> tuple[sealing.Blocks, int | None]:
        for content in edits:
            (base / "f").write_bytes(content)
        return read(fd, what, first, count)

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "read", read_during_an_edit)
        done = seal(rig)
    assert [row["path"] for row in done.problems] == ["f"]
    assert rig.problems() == [("lost", "f"), ("external", "f")]
    assert rig.read(b"f") == b"new" * B
    rig.restore(START)
    assert errno_of(rig.read, b"f") == errno.EIO
    rig.undo()
    assert seal(rig).complete
    assert rig.read(b"f") == b"new" * B


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_cannot_be_read_is_named(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("f")
    (base / "g").write_text("g")
    (base / "f").chmod(0)
    rig = open_rig()
    done = seal(rig)
    assert not done.complete
    assert [row["path"] for row in done.problems] == ["f"]
    assert (done.files, done.unsealed) == (1, 1)


def test_lost_before(open_rig: OpenRig, base: Path) -> None:
    """What is lost already is counted, and is no reason for the rest not to be complete."""
    (base / "f").write_text("old")
    (base / "g").write_text("g")
    rig = open_rig()
    rig.tree()
    rig.close()
    (base / "f").write_text("new")
    rig.start()
    done = seal(rig)
    assert (done.complete, done.unsealed, done.lost) == (True, 0, 1)
    (base / "f").unlink()
    assert rig.volume.base is not None
    rig.volume.base.forget()
    assert rig.read(b"f") == b"new"


def test_how_much_is_sealed_is_counted_anew_only_when_it_changes(
    base: Path, open_rig: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (base / name).write_text(name)
    rig = open_rig()
    rig.paths()
    state, counted = service.SealingState(), Counter[str]()
    real = service.sealing_state

    def count(reader: Reader) -> dict[str, int]:
        counted["times"] += 1
        return real(reader)

    monkeypatch.setattr(service, "sealing_state", count)

    def told() -> dict[str, int]:
        rig.volume.sync()
        with Reader(rig.volume.store) as reader:
            return state(reader)

    assert told() == told() == {"unsealed": 2, "lost": 0}
    assert counted["times"] == 1
    service.seal(rig.engine, [b"one"], Pace(), lambda **_: None)
    assert told() == {"unsealed": 1, "lost": 0}
