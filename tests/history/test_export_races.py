"""An export writes below its destination and nowhere else, whatever is done to it meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import ExportFailedError, NotADirectoryPathError
from cowfs.service.export import export_tree
from cowfs.service.exporting.renewal import remove
from cowfs.volume import attributes
from tests.history.states import history
from tests.support.racing import Outside, swapping
from tests.support.volumes import Rig

ROUNDS = 12
NAMES = [f"f{number}" for number in range(40)] + ["link", "fifo", "again"]
DIRECTORIES = ["sub", "closed"]


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "outside", NAMES, DIRECTORIES)


@pytest.fixture
def filled(volume: Rig) -> Rig:
    """A directory of everything that an export writes, attributes above all."""
    volume.mkdir(b"d")
    for number in range(40):
        name = b"d/f%d" % number
        volume.create(name, b"exported", mode=stat.S_IFREG | 0o604)
        volume.setxattr(name, b"user.a", b"1")
        attributes.set_attributes(volume.view, volume.at(name), mtime=number)
    volume.link(b"d/f1", b"d/again")
    volume.symlink(b"target", b"d/link")
    volume.create(b"d/fifo", mode=stat.S_IFIFO | 0o606)
    for name in (b"d/sub", b"d/closed"):
        volume.mkdir(name, 0o500)
        volume.create(name + b"/within", b"exported")
    return volume


def export_or_not(rig: Rig, dest: Path, *, tar: bool = False) -> None:
    """What is in the way may stop it, with an error that says so."""
    with history(rig) as workspace:
        try:
            export_tree(workspace, workspace.point("@"), dest, tar=tar)
        except (ExportFailedError, NotADirectoryPathError):
            pass


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("name", ["d", "d/sub", "d/fifo", "d/f1"])
def test_what_is_written_swapped_for_a_link(
    filled: Rig, tmp_path: Path, outside: Outside, name: str, existing: bool
) -> None:
    leads_to = outside.top / Path(name).name if "/" in name else outside.top
    for number in range(ROUNDS):
        place, trap = tmp_path / f"place{number}", tmp_path / f"trap{number}"
        (place / "out").mkdir(parents=True)
        if not existing:
            (place / "out").rmdir()
        trap.symlink_to(leads_to)
        with swapping(place, name, trap, within=".partial"):
            export_or_not(filled, place / "out")
        outside.assert_untouched()
        remove(place)  # some of its directories are closed


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_an_archive_swapped_for_a_link(
    filled: Rig, tmp_path: Path, outside: Outside, make: Callable[[Path, Path], None]
) -> None:
    for number in range(ROUNDS):
        place, trap = tmp_path / f"place{number}", tmp_path / f"trap{number}"
        place.mkdir()
        make(outside.top / "f1", trap)
        with swapping(place, "", trap, within=".partial"):
            export_or_not(filled, place / "out.tar", tar=True)
        outside.assert_untouched(links=make is os.symlink)


def test_a_directory_above_swapped_for_a_link(
    filled: Rig, tmp_path: Path, outside: Outside
) -> None:
    """Found to be a directory, and a link when it is opened."""
    (tmp_path / "above/place").mkdir(parents=True)
    (tmp_path / "trap").symlink_to(outside.top)
    real = os.path.realpath

    def swapped(path: Path) -> str:
        found = real(path)
        os.rename(tmp_path / "above", tmp_path / "moved")
        os.rename(tmp_path / "trap", tmp_path / "above")
        return found

    for tar in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os.path, "realpath", swapped)
            export_or_not(filled, tmp_path / "above/place/out", tar=tar)
        outside.assert_untouched()
        os.rename(tmp_path / "above", tmp_path / "trap")
        os.rename(tmp_path / "moved", tmp_path / "above")
    assert os.listdir(tmp_path / "above/place") == []
