"""Automatic checkpoints of a live mount, and what is worth one."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cowfs.daemon.autosaver import Autosaver
from cowfs.daemon.deletions import Deletions
from cowfs.daemon.schedule import RETRY_SECONDS
from cowfs.errors import StoreFullError
from cowfs.format import records
from cowfs.mount.operations import Operations
from cowfs.service import config
from cowfs.service.automatic import has_changes
from cowfs.service.engine import LocalEngine
from cowfs.service.selectors import all_checkpoints
from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from cowfs.types import ROOT_INO
from cowfs.volume.history import Author
from tests.cli.command import Cowfs
from tests.limits.test_full import write_until_full
from tests.mount.calls import eventually
from tests.support import mounting
from tests.support.mounting import Mounted
from tests.support.volumes import AUTHOR, Rig

SOON = '[checkpoints]\nsettle = "100ms"\nspacing = "off"\n'
ONLY_DELETIONS = '[checkpoints]\nsettle = "off"\ninterval = "off"\nbefore_deletion = 20\n'
NEVER = '[checkpoints]\nprofile = "manual"\n'


@contextmanager
def watched(base: Path, settings: str) -> Iterator[Mounted]:
    """A mount that makes automatic checkpoints."""
    store = base.with_name(base.name + ".store")
    store.mkdir(exist_ok=True)
    (store / config.FILE).write_text(settings)
    with mounting.mounted(base, automatic=True) as mount:
        yield mount


def checkpoints(mount: Mounted) -> list[Any]:
    """Those that are there, oldest first, but for the one before the first mount."""
    mount.call("flush")
    store = open_store(mount.store, writable=False)
    try:
        with Reader(store) as reader:
            return all_checkpoints(reader)[1:]
    finally:
        store.close()


def tree(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


def fill(top: Path, files: int = 60) -> None:
    for number in range(files):
        directory = top / "src" / f"d{number % 7}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_text(f"as it came {number}")


# -- bursts ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_fuse")
def test_a_burst_is_kept(base: Path) -> None:
    with watched(base, SOON) as mount:
        (base / "a").write_text("one")
        (base / "b").write_text("two")
        eventually(lambda: len(checkpoints(mount)) > 0)
        record = checkpoints(mount)[-1]
        eventually(lambda: not mount.call("status", flush=True)["changes"]["created"])
        assert record.kind == "auto"
        assert record.message.startswith("after a burst: ")
        assert record.uid == os.geteuid()
        (base / "a").unlink()
        mount.restore(checkpoints(mount)[0].id)
        assert (base / "a").read_text() == "one"
        assert mount.call("status")["automatic"]["made"] >= 1


@pytest.mark.usefixtures("needs_fuse")
def test_a_change_of_the_settings_is_taken_over(base: Path) -> None:
    with watched(base, NEVER) as mount:
        (base / "a").write_text("one")
        assert mount.call("status", flush=True)["changes"]["created"] == 1
        assert mount.call("status")["automatic"]["profile"] == "manual"
        for key, value in (("settle", "100ms"), ("spacing", "off"), ("profile", "exploratory")):
            config.change(mount.store, f"checkpoints.{key}", [value])
        eventually(lambda: [r.kind for r in checkpoints(mount)] == ["auto"])
        config.change(mount.store, "checkpoints.profile", ["manual"])
        config.change(mount.store, "checkpoints.settle", None)
        eventually(lambda: mount.call("status")["automatic"]["profile"] == "manual")


@pytest.mark.usefixtures("needs_fuse")
def test_a_broken_file_of_settings_is_told(base: Path) -> None:
    with watched(base, "[checkpoints]\nprofil = 1\n") as mount:
        status = mount.call("status")
        assert status["health"]["state"] == "warning"
        (problem,) = status["health"]["problems"]
        assert problem["kind"] == "config"
        assert "checkpoints.profile" in problem["detail"]
        assert status["automatic"]["profile"] == "exploratory"
        (mount.store / config.FILE).unlink()
        eventually(lambda: mount.call("status")["health"]["state"] == "ok")


@pytest.mark.usefixtures("needs_fuse")
def test_restores_meanwhile(base: Path) -> None:
    """Each restore shows exactly its checkpoint, however many automatic ones are being made."""
    policy = '[checkpoints]\nsettle = "1ms"\nspacing = "off"\nbefore_deletion = 1\n'
    with watched(base, policy) as mount:
        fill(base)
        first, states = mount.checkpoint(), {}
        states[first] = tree(base)
        shutil.rmtree(base / "src" / "d0")
        (base / "new").write_text("new")
        second = mount.checkpoint()
        states[second] = tree(base)
        for number in range(15):
            (base / f"more{number}").write_text("more")
            (base / f"more{number}").unlink()
            target = (first, second)[number % 2]
            mount.restore(target)
            assert tree(base) == states[target]


@pytest.mark.usefixtures("needs_fuse")
def test_changes_from_outside_have_a_checkpoint_of_their_own(base: Path) -> None:
    fill(base)
    with watched(base, NEVER):
        tree(base)
    (base / "src" / "d1" / "f1").write_text("edited outside")
    (base / "outside").write_text("made outside")
    with watched(base, SOON) as mount:
        eventually(lambda: [r.kind for r in checkpoints(mount)] == ["external"])
        (base / "a").write_text("one")
        eventually(lambda: len(checkpoints(mount)) > 1)
        assert [record.kind for record in checkpoints(mount)] == ["external", "auto"]
        (base / "b").write_text("two")
        (base / "a").unlink()
        eventually(lambda: len(checkpoints(mount)) > 2)
        assert all(any(records.to_dict(r.counts).values()) for r in checkpoints(mount)[1:])


# -- deletions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_fuse")
def test_rm_rf_is_taken_back_with_the_last_edits(base: Path) -> None:
    fill(base)
    with watched(base, ONLY_DELETIONS) as mount:
        by_hand = mount.checkpoint("by hand")
        mount.call("flush")  # waits for what the checkpoint adds after it was answered
        for number in range(0, 60, 3):
            (base / "src" / f"d{number % 7}" / f"f{number}").write_text("edited a moment ago")
        (base / "src" / "d1" / "new").write_text("made a moment ago")
        os.rename(base / "src" / "d2", base / "src" / "renamed")
        before = tree(base)
        subprocess.run(["rm", "-rf", base / "src"], check=True)
        assert os.listdir(base) == []
        rows = checkpoints(mount)
        assert [record.kind for record in rows] == ["manual", "auto"]
        kept = rows[-1]
        eventually(lambda: checkpoints(mount)[-1].message == "before a deletion of 61 files")
        mount.restore(kept.id)
        assert tree(base) == before
        # What the daemon makes by itself is not counted.
        assert mount.restore("@~1")["checkpoint"]["id"] == by_hand


def test_a_deletion_that_begins_during_another_operation(open_rig: Callable[[], Rig]) -> None:
    """What is removed in that moment has no checkpoint; all that is removed after it has."""
    rig = open_rig()
    for name in (b"f0", b"f1", b"f2", b"f3"):
        rig.create(name, b"made a moment ago")
    operation = threading.RLock()
    deletions = Deletions(rig.volume, operation, AUTHOR)
    deletions.files = 3

    def remove(name: bytes) -> None:
        deletions.before(ROOT_INO, name, 1)
        rig.unlink(name)

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(operation.acquire).result()
        remove(b"f0")
        elsewhere.submit(operation.release).result()
    for name in (b"f1", b"f2", b"f3"):
        remove(name)
    rig.volume.sync()
    (kept,) = all_checkpoints(rig.volume.reader)[1:]
    rig.restore(kept)
    assert rig.ls() == [b"f1", b"f2", b"f3"]


@pytest.mark.usefixtures("needs_fuse")
def test_nothing_is_kept_before_a_deletion_that_everything_is_kept_of(base: Path) -> None:
    fill(base)
    with watched(base, ONLY_DELETIONS) as mount:
        mount.checkpoint()
        subprocess.run(["rm", "-rf", base / "src"], check=True)
        assert len(checkpoints(mount)) == 1


@pytest.mark.usefixtures("needs_fuse")
def test_nothing_is_kept_of_what_is_only_made_and_removed(base: Path) -> None:
    with watched(base, ONLY_DELETIONS) as mount:
        for number in range(30):
            (base / f"probe{number}").write_text("x")
            (base / f"probe{number}").unlink()
        assert checkpoints(mount) == []


@pytest.mark.usefixtures("needs_fuse")
def test_a_run_of_deletions_is_one_run(base: Path) -> None:
    fill(base)
    with watched(base, ONLY_DELETIONS) as mount:
        (base / "edited").write_text("x")
        for path in sorted(base.rglob("f*")):
            path.unlink()
            (base / "edited").write_text("again")
        assert len(checkpoints(mount)) == 1


@pytest.mark.usefixtures("needs_fuse")
def test_none_before_deletions_if_they_are_off(base: Path) -> None:
    fill(base)
    with watched(base, NEVER) as mount:
        (base / "edited").write_text("x")
        shutil.rmtree(base / "src")
        assert checkpoints(mount) == []


# -- what is worth a checkpoint -------------------------------------------------------------------


def _made_and_removed(rig: Rig) -> None:
    rig.create(b"d/temporary", b"x")
    rig.engine.volume.sync()
    rig.unlink(b"d/temporary")
    rig.mkdir(b"d/directory")
    rig.engine.volume.sync()
    rig.rmdir(b"d/directory")


CHANGES: dict[str, tuple[Callable[[Rig], object], bool]] = {
    "nothing": (lambda rig: None, False),
    "made and removed": (_made_and_removed, False),
    "content": (lambda rig: rig.write(b"d/f", b"x"), True),
    "mode of a file": (lambda rig: rig.chmod(b"d/f", 0o600), True),
    "mode of a directory": (lambda rig: rig.chmod(b"d", 0o700), True),
    "attribute of a directory": (lambda rig: rig.setxattr(b"d", b"user.a", b"1"), True),
    "name of a directory": (lambda rig: rig.rename(b"d", b"e"), True),
    "name of a file": (lambda rig: rig.rename(b"d/f", b"d/g"), True),
    "removed": (lambda rig: rig.unlink(b"d/f"), True),
    "link": (lambda rig: rig.link(b"d/f", b"d/g"), True),
    "symbolic link": (lambda rig: rig.symlink(b"d/f", b"d/g"), True),
    "directory": (lambda rig: rig.mkdir(b"d/g"), True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_worth_a_checkpoint(volume: Rig, what: str) -> None:
    change, worth = CHANGES[what]
    volume.mkdir(b"d")
    volume.create(b"d/f", b"x")
    volume.checkpoint()
    change(volume)
    volume.engine.volume.sync()
    assert has_changes(volume.engine.volume) is worth
    volume.reopen()
    assert has_changes(volume.engine.volume) is worth


class _FullEngine(LocalEngine):
    """The store is full; tries: how often that was found out."""

    tries = 0

    def flush(self) -> None:
        self.tries += 1
        raise StoreFullError(path="/store", detail="no room")


def test_one_that_fails_is_told_and_not_repeated_at_once(volume: Rig, tmp_path: Path) -> None:
    (tmp_path / config.FILE).write_text(SOON)
    engine = _FullEngine(volume.engine.volume)
    operations = cast(Operations, SimpleNamespace(before_removal=None))
    saver = Autosaver(engine, operations, threading.RLock(), tmp_path, Author(), enabled=True)
    saver.start()
    try:
        volume.create(b"f", b"x")
        saver.tick(1.0)
        saver.tick(2.0)
        eventually(lambda: bool(saver.problems()))
        (problem,) = saver.problems()
        assert problem["kind"] == "automatic"
        assert "no room" in problem["detail"]
        eventually(lambda: not saver.busy)
        for second in range(3, 200):
            saver.tick(float(second))
        assert not saver.busy
        assert engine.tries == 1
        saver.tick(2.0 + RETRY_SECONDS + 1.0)
        eventually(lambda: engine.tries == 2)
    finally:
        saver.stop()


@pytest.mark.usefixtures("needs_fuse")
def test_a_full_store_is_no_reason_for_more(tmp_path: Path) -> None:
    """Deleting and checkpoints by hand go on."""
    cowfs = Cowfs(tmp_path)
    project = cowfs.top / "project"
    project.mkdir()
    try:
        cowfs.ok("mount", project, "--quota", "12M", "--automatic")
        cowfs.cwd = project
        for key, value in (("settle", "100ms"), ("spacing", "off"), ("before_deletion", "1")):
            cowfs.ok("config", f"checkpoints.{key}", value)
        (project / "kept").write_bytes(b"kept")
        assert write_until_full(project / "big", 64 << 20).errno == errno.ENOSPC
        (project / "big").unlink()
        assert (project / "kept").read_bytes() == b"kept"

        def is_told_or_kept() -> bool:
            """A checkpoint was made, or `status` says why not; the next try is minutes away."""
            status = cowfs.ok("status")
            kinds = [problem["kind"] for problem in status["health"]["problems"]]
            return status["changes"] == NO_CHANGES or "automatic" in kinds

        eventually(is_told_or_kept)
        cowfs.ok("checkpoint")
        (project / "kept").unlink()
        cowfs.ok("restore", "@~1")
        assert (project / "kept").read_bytes() == b"kept"
        assert cowfs.ok("verify")["problems"] == []
    finally:
        cowfs.cwd = cowfs.top
        cowfs.clean_up()


NO_CHANGES = {"created": 0, "modified": 0, "deleted": 0}
