"""Apply by an ordinary user into directories of their own that are closed for writing."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import cowfs.service.verify  # noqa: F401 - the child process may not be able to find modules
from tests.mount.calls import NOBODY, in_child, write_file
from tests.support.volumes import Rig
from tests.volume.test_apply import check, run


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the user's who makes the apply: nobody, where root runs the tests."""
    directory = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    yield directory
    for below, names, _ in os.walk(directory):
        for name in names:
            os.chmod(os.path.join(below, name), 0o700)
    shutil.rmtree(directory)


def by_a_user(body: Callable[[], None]) -> None:
    in_child(body, uid=NOBODY if os.geteuid() == 0 else None)


def make_base(base: Path) -> None:
    """Directories with files and sub-directories, all of mode 0555, the top too."""
    for name in ("changes", "goes", "moves"):
        (base / name / "sub").mkdir(parents=True)
        write_file(base / name / "file", name.encode(), 0o444)
        write_file(base / name / "sub/x", b"x", 0o444)
        for closed in (f"{name}/sub", name):
            (base / closed).chmod(0o555)
    base.chmod(0o555)


@pytest.mark.parametrize("opened", [False, True])
def test_directories_closed_for_writing(place: Path, opened: bool) -> None:
    """The owner may change their mode, so that they do not stop an apply; afterwards they have
    the mode that they have in the workspace."""

    def body() -> None:
        base = place / "base"
        base.mkdir()
        make_base(base)
        rig = Rig(place / "store", base)
        create = partial(rig.create, uid=os.geteuid(), gid=os.getegid())
        if opened:
            for name in (b"", b"changes", b"moves"):
                rig.chmod(name, 0o755)
        rig.save(b"changes/file", b"written")
        create(b"changes/new", b"new")
        create(b"changes/directory", mode=stat.S_IFDIR | 0o555)
        create(b"changes/directory/in", b"in")
        create(b"top", b"top")
        rig.unlink(b"changes/sub/x")
        rig.remove_tree(b"goes")
        rig.rename(b"moves", b"changes/moved")
        check(rig, run(rig))
        assert stat.S_IMODE(os.stat(base).st_mode) == (0o755 if opened else 0o555)
        rig.reopen()
        check(rig, run(rig))
        assert rig.problems() == []
        rig.finish()

    by_a_user(body)
