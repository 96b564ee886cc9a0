"""An ordinary user closes directories and files to themself; unmounting writes that, and the next
mount goes on with it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.mount.calls import NOBODY, in_child, write_file
from tests.mount.mounts import interpreter_for, need_users_mounts, shared_mount
from tests.support.mounting import Mounted

Mounting = Callable[[], AbstractContextManager[Mounted]]


@pytest.fixture
def base() -> Iterator[Path]:
    need_users_mounts()
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    base = top / "base"
    (base / "old/below").mkdir(parents=True)
    write_file(base / "old/below/file", b"in the base only", 0o644)
    write_file(base / "closes", b"in the base only, too", 0o644)
    for path in (top, base, *base.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield base
    shutil.rmtree(top)


@pytest.fixture
def mount(base: Path) -> Iterator[Mounting]:
    with interpreter_for(NOBODY, base.parent) as interpreter:
        yield partial(shared_mount, base, uid=NOBODY, interpreter=interpreter)


def test_closed_directories_are_applied_and_opened_again(mount: Mounting, base: Path) -> None:
    def close(mounted: Mounted) -> None:
        (base / "d").mkdir()
        write_file(base / "d/f", b"new")
        for name in ("d", "old", "closes"):
            (base / name).chmod(0)
        assert mounted.call("unmount", apply=True)["applied"]["problems"] == []

    def reopen(mounted: Mounted) -> None:
        for name in ("d", "old", "closes"):
            (base / name).chmod(0o700)
        assert (base / "d/f").read_bytes() == b"new"
        assert (base / "old/below/file").read_bytes() == b"in the base only"
        assert (base / "closes").read_bytes() == b"in the base only, too"
        write_file(base / "d/g", b"newer")
        (base / "old").chmod(0)
        assert mounted.call("unmount", apply=True)["applied"]["problems"] == []

    for use, mode in ((close, 0), (reopen, 0o700)):
        with mount() as mounted:
            in_child(partial(use, mounted), uid=NOBODY)
            assert mounted.process.wait(30) == 0
        assert stat.S_IMODE((base / "d").stat().st_mode) == mode  # seen as root, in the base
        assert stat.S_IMODE((base / "old").stat().st_mode) == 0
    assert sorted(os.listdir(base / "d")) == ["f", "g"]
    assert (base / "d/g").stat().st_uid == NOBODY
