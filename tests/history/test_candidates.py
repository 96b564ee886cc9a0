"""The directory in which `bisect` shows one state after the other: each exactly, whatever a command
did in the one before."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.service.export import export_tree
from cowfs.service.exporting.directory import Writer
from cowfs.service.finding import candidates
from cowfs.service.finding.candidates import Candidates
from cowfs.service.workspace import ReadOnly
from cowfs.volume.posix import PosixError
from tests.history.states import history
from tests.support.listing import difference, listing, portable
from tests.support.steps import Worker
from tests.support.volumes import Rig

OpenRig = Callable[[], Rig]


class Counted:
    """How often states were written as a whole, and which paths were written otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = 0
        self.paths: list[bytes] = []
        export, write = export_tree, Writer.write

        def export_counted(*args: object, **options: object) -> object:
            self.whole += 1
            return export(*args, **options)  # type: ignore[arg-type]

        def write_counted(writer: Writer, fd: int, node: object) -> None:
            self.paths.append(node.path)  # type: ignore[attr-defined]
            write(writer, fd, node)  # type: ignore[arg-type]

        monkeypatch.setattr(candidates, "export_tree", export_counted)
        monkeypatch.setattr(Writer, "write", write_counted)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Where the candidates are."""
    (tmp_path / "candidates").mkdir()
    return tmp_path / "candidates"


def write(shown: Candidates, workspace: ReadOnly, checkpoint: str) -> Path:
    place, lost = shown.write(workspace, workspace.point(checkpoint))
    assert lost == []
    return place


def assert_shows(place: Path, workspace: ReadOnly, checkpoint: str, other: Path) -> None:
    """It is what an export of the state would be."""
    export_tree(workspace, workspace.point(checkpoint), other)
    assert difference(portable(listing(place)), portable(listing(other))) == []
    assert sorted(os.listdir(place.parent)) == [place.name]
    shutil.rmtree(other)


# -- what commands do -------------------------------------------------------------------------


def vandalize(place: Path, rng: random.Random) -> None:
    """Something that a command may do in a directory."""
    paths = sorted(path for path in place.rglob("*"))
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    directories = [place, *(p for p in paths if p.is_dir() and not p.is_symlink())]
    new = rng.choice(directories) / f"made{rng.randrange(1000)}"
    what = rng.randrange(11)
    if what == 0:
        new.mkdir()
        (new / "product").write_bytes(rng.randbytes(100))
        new.chmod(rng.choice([0, 0o500, 0o755]))
    elif what == 1 and files:
        rng.choice(files).unlink()
    elif what == 2 and len(directories) > 1:
        shutil.rmtree(rng.choice(directories[1:]))
    elif what == 3 and files:  # as touch -r does, so that size and mtime are the same
        path = rng.choice(files)
        st = path.stat()
        path.write_bytes(rng.randbytes(st.st_size))
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    elif what == 4 and files:
        rng.choice(files).chmod(rng.choice([0o600, 0o755, 0]))
    elif what == 5 and len(directories) > 1:  # everything below it is elsewhere
        directory = rng.choice(directories[1:])
        if not new.is_relative_to(directory):
            directory.rename(new)
            directory.symlink_to(new)
    elif what == 6 and files:
        os.link(rng.choice(files), new)
    elif what == 7:
        os.setxattr(rng.choice([*files, *directories]), "user.command", b"x")
    elif what == 8 and files:
        path = rng.choice(files)
        path.rename(new)
        path.mkdir()
        (path / "in it").touch()
    elif what == 9:
        os.utime(rng.choice(directories), ns=(1, 1))
    elif files:
        rng.choice(files).read_bytes()


class Unlinked(Worker):
    """Makes no hard links."""

    def step(self) -> None:
        calls = [call for call in self._CALLS if call is not Worker._link]
        with contextlib.suppress(PosixError):
            self._rng.choice(calls)(self)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("seed", range(4))
def test_each_is_as_an_export(
    volume: Rig, top: Path, tmp_path: Path, counted: Counted, seed: int, links: bool
) -> None:
    rng, worker = random.Random(seed), (Worker if links else Unlinked)(volume, seed)
    ids = []
    for _ in range(8):
        for _ in range(rng.randrange(1, 15)):
            worker.step()
        if os.geteuid() != 0:  # else the listing of the test could not look into them
            for path in [path for path, inode in volume.paths().items() if inode.is_dir]:
                volume.chmod(path, stat.S_IFDIR | 0o755)
        ids.append(volume.checkpoint().id)
    shown = Candidates(top)
    with history(volume) as workspace:
        for _ in range(16):
            checkpoint = rng.choice(ids)
            place = write(shown, workspace, checkpoint)
            assert_shows(place, workspace, checkpoint, tmp_path / "export")
            for _ in range(rng.randrange(4)):
                with contextlib.suppress(PermissionError):  # a user closed it to itself before
                    vandalize(place, rng)
    assert counted.whole < 16, "none was made of the one before"
    if not links:
        assert counted.whole == 1


# -- what is written --------------------------------------------------------------------------


def many(rig: Rig) -> list[str]:
    """Three checkpoints of a hundred files; one is changed, one comes, one goes, one moves."""
    rig.mkdir(b"d")
    for number in range(100):
        rig.create(b"d/f%d" % number, b"%d\n" % number * 50)
    ids = [rig.checkpoint().id]
    rig.save(b"d/f1", b"changed\n")
    rig.create(b"d/new", b"new\n")
    rig.unlink(b"d/f2")
    rig.rename(b"d/f3", b"moved")
    ids.append(rig.checkpoint().id)
    rig.rename(b"d", b"e")
    return [*ids, rig.checkpoint().id]


def test_only_what_differs_is_written(volume: Rig, top: Path, counted: Counted) -> None:
    one, two, three = many(volume)
    shown = Candidates(top)
    with history(volume) as workspace:
        write(shown, workspace, one)
        assert len(counted.paths) == 100
        counted.paths.clear()
        place = write(shown, workspace, two)
        assert sorted(counted.paths) == [b"d/f1", b"d/new", b"moved"]
        (place / "d/f50").write_text("by the command\n")
        (place / "d/f51").unlink()
        (place / "d/object.o").write_text("a product\n")
        counted.paths.clear()
        place = write(shown, workspace, one)
        assert sorted(counted.paths) == [b"d/f1", b"d/f2", b"d/f3", b"d/f50", b"d/f51"]
        assert (place / "d/f50").read_text() == "50\n" * 50
        assert sorted(os.listdir(place / "d")) == sorted(f"f{n}" for n in range(100))
        counted.paths.clear()
        place = write(shown, workspace, three)
        assert len(counted.paths) == 100, "a directory that was renamed is written"
        assert sorted(os.listdir(place)) == ["e", "moved"]
    assert counted.whole == 1


def test_a_change_at_once_is_seen(volume: Rig, top: Path) -> None:
    """In the same moment, as far as a clock can tell, with the same size and mtime."""
    volume.create(b"f", b"right")
    ids = [volume.checkpoint().id]
    volume.create(b"g")
    ids.append(volume.checkpoint().id)
    shown = Candidates(top)
    with history(volume) as workspace:
        for turn in range(50):
            place = write(shown, workspace, ids[turn % 2])
            assert (place / "f").read_bytes() == b"right"
            st = (place / "f").stat()
            fd = os.open(place / "f", os.O_WRONLY)
            os.pwrite(fd, b"wrong", 0)
            os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns))
            os.close(fd)


def test_access_times_are_those_of_the_checkpoint(volume: Rig, top: Path) -> None:
    volume.create(b"f", b"text")
    ids = [volume.checkpoint().id]
    volume.create(b"g")
    ids.append(volume.checkpoint().id)
    shown = Candidates(top)
    with history(volume) as workspace:
        place = write(shown, workspace, ids[0])
        before = (place / "f").stat()
        os.utime(place / "f", ns=(12345, before.st_mtime_ns))
        place = write(shown, workspace, ids[1])
        after = (place / "f").stat()
        assert (after.st_atime_ns, after.st_mtime_ns) == (before.st_atime_ns, before.st_mtime_ns)


# -- as a whole -------------------------------------------------------------------------------


def test_hard_links(volume: Rig, top: Path, tmp_path: Path, counted: Counted) -> None:
    """A file with several names is written as a whole state; one that nothing touched stays."""
    volume.create(b"a", b"one")
    volume.link(b"a", b"b")
    volume.create(b"c", b"other")
    ids = [volume.checkpoint().id]
    volume.save(b"c", b"another")
    ids.append(volume.checkpoint().id)
    volume.unlink(b"b")
    volume.create(b"b", b"one")
    ids.append(volume.checkpoint().id)
    volume.save(b"a", b"two")
    volume.unlink(b"b")
    volume.link(b"a", b"b")
    ids.append(volume.checkpoint().id)
    shown = Candidates(top)
    with history(volume) as workspace:
        for at, whole in ((0, 1), (1, 1), (2, 1), (3, 2), (1, 3)):
            place = write(shown, workspace, ids[at])
            assert_shows(place, workspace, ids[at], tmp_path / "export")
            assert counted.whole == whole, at


def test_the_present_state_is_no_ground(volume: Rig, top: Path, counted: Counted) -> None:
    """What it was cannot be asked for when the workspace has gone on."""
    volume.create(b"f", b"then")
    first = volume.checkpoint().id
    volume.create(b"soon gone")
    shown = Candidates(top)
    with history(volume) as workspace:
        assert sorted(os.listdir(write(shown, workspace, "@"))) == ["f", "soon gone"]
    volume.unlink(b"soon gone")
    with history(volume) as workspace:
        assert os.listdir(write(shown, workspace, first)) == ["f"]
    assert counted.whole == 2


def test_when_it_is_told_to(volume: Rig, top: Path, counted: Counted) -> None:
    ids = many(volume)[:2]
    with history(volume) as workspace:
        shown = Candidates(top, fresh=True)
        for checkpoint in ids:
            write(shown, workspace, checkpoint)
        assert counted.whole == 2
        (top / "again").mkdir()
        shown = Candidates(top / "again")
        write(shown, workspace, ids[0])
        shown.leave()
        write(shown, workspace, ids[1])
        assert counted.whole == 4
