"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.tools.tool", "tests.tools.sample")

# Tests count checkpoints and epochs: none comes by itself where a test does not ask for it.
os.environ["COWFS_AUTOMATIC"] = "no"

from hypothesis import HealthCheck, settings  # noqa: E402

from tests.support import mounting  # noqa: E402
from tests.support.mounting import Mounted  # noqa: E402
from tests.support.volumes import Rig  # noqa: E402

MountFunction = Callable[..., Mounted]
_FAILED = pytest.StashKey[bool]()

# How long an example takes is a matter of what else the machine does.
settings.register_profile("cowfs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cowfs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know whether their test failed: what it left behind proves nothing then."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An empty directory to make a workspace of."""
    directory = tmp_path / "base"
    directory.mkdir()
    return directory


# -- volumes without FUSE -----------------------------------------------------------------------


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is room for one, else in `tmp_path`: for stores, whose
    commits wait for the disk."""
    memory = "/dev/shm"
    try:
        space = os.statvfs(memory)
        roomy = os.access(memory, os.W_OK) and space.f_bavail * space.f_frsize > 1 << 28
    except OSError:
        roomy = False
    with tempfile.TemporaryDirectory(dir=memory if roomy else tmp_path) as place:
        yield Path(place)


@pytest.fixture
def open_rig(
    request: pytest.FixtureRequest, fast_path: Path, base: Path
) -> Iterator[Callable[[], Rig]]:
    """open_rig(): a volume on `base`, for tests that fill the base directory first.

    At the end of the test the volume is closed and its store must be consistent.
    """

    def finish(rig: Rig) -> None:
        rig.finish(check=not request.node.stash.get(_FAILED, False))

    with contextlib.ExitStack() as stack:

        def start() -> Rig:
            store = tempfile.mkdtemp(prefix="store", dir=fast_path)
            rig = Rig(Path(store), base)
            stack.callback(finish, rig)
            return rig

        yield start


@pytest.fixture
def volume(open_rig: Callable[[], Rig]) -> Rig:
    """A volume on an empty base directory; see `open_rig`."""
    return open_rig()


# -- mounts -------------------------------------------------------------------------------------


@pytest.fixture
def needs_fuse() -> None:
    """Skips the test where nothing can be mounted."""
    if reason := mounting.fuse_missing():
        pytest.skip(reason)


@pytest.fixture
def mounted(needs_fuse: None) -> Callable[..., AbstractContextManager[Mounted]]:
    """The context manager `tests.support.mounting.mounted`, for tests that mount several times."""
    return mounting.mounted


@pytest.fixture
def mount(needs_fuse: None) -> Iterator[MountFunction]:
    """mount(base, store=None, at=None): mounts until the end of the test."""
    with contextlib.ExitStack() as stack:

        def enter(base: Path, store: Path | None = None, at: Path | None = None) -> Mounted:
            return stack.enter_context(mounting.mounted(base, store, at))

        yield enter
