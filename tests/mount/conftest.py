"""Fixtures of the tests on real mounts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.mount.scenarios", "tests.mount.hammer")

from tests.mount.mounts import shared_mount  # noqa: E402
from tests.support import mounting  # noqa: E402
from tests.support.mounting import Mounted  # noqa: E402


def _need_fuse() -> None:
    if reason := mounting.fuse_missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def module_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One mount for all tests of a module that only need a directory on one."""
    _need_fuse()
    base = tmp_path_factory.mktemp("module") / "base"
    base.mkdir()
    with mounting.mounted(base) as mount:
        yield mount


@pytest.fixture(scope="module")
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def others_mount(open_directory: Path) -> Iterator[Mounted]:
    """A mount of root's that other users may use (allow_other)."""
    _need_fuse()
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    base = open_directory / "others"
    base.mkdir()
    with shared_mount(base, allow_other=True) as mount:
        yield mount
