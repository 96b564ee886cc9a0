"""What removes checkpoints by itself leaves those that somebody looks into for later."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cowfs.daemon.collector import Collector
from cowfs.service.selectors import all_checkpoints
from cowfs.types import ROOT_INO
from tests.conftest import MountFunction
from tests.mount.calls import errno_of, eventually, opened
from tests.support import mounting
from tests.support.listing import difference, listing, portable
from tests.support.mounting import Mounted
from tests.support.volumes import Rig

COUNT = 4
SIZE = 1 << 20
LAST_ONLY = {"keep_last": 1}


def content(number: int) -> bytes:
    """Of the large file in checkpoint `number`."""
    return random.Random(number).randbytes(SIZE)


def make_history(mounted: Mounted) -> list[str]:
    """Checkpoints 0 to 3, all different; nothing of the first ones is in the head."""
    top, ids = mounted.mountpoint, []
    for number in range(COUNT):
        (top / "d/e").mkdir(parents=True)
        (top / "d/big").write_bytes(content(number))
        (top / f"d/e/own{number}").write_text(f"{number}\n")
        ids.append(mounted.checkpoint(f"c{number}"))
        shutil.rmtree(top / "d")
    return ids


def place(mounted: Mounted, checkpoint: str) -> Path:
    return mounted.mountpoint / ".cowfs/checkpoints" / checkpoint


def collect(mounted: Mounted) -> tuple[list[str], int]:
    """Run the policy: ids of what it removed, and how many it spared."""
    done: dict[str, Any] = mounted.call("gc", rules=LAST_ONLY)
    return [row["id"] for row in done["removed"]], done["browsed"]


def is_there(mounted: Mounted, checkpoint: str) -> bool:
    return checkpoint in os.listdir(mounted.mountpoint / ".cowfs/checkpoints")


# -- on a mount -------------------------------------------------------------------------------


def test_who_looks_goes_on(mount: MountFunction, base: Path, tmp_path: Path) -> None:
    """A tool is in the middle of a checkpoint when the policy runs, and holds nothing of it."""
    mounted = mount(base)
    ids = make_history(mounted)
    old = place(mounted, ids[1])
    first = listing(old / "d/e")  # the large file was not looked at yet
    assert collect(mounted) == ([ids[0], ids[2]], 1)
    assert listing(old / "d/e") == first
    shutil.copytree(old, tmp_path / "copy", symlinks=True)
    assert (tmp_path / "copy/d/big").read_bytes() == content(1)
    assert (tmp_path / "copy/d/e/own1").read_text() == "1\n"
    assert difference(portable(listing(old)), portable(listing(tmp_path / "copy"))) == []
    for gone in (ids[0], ids[2]):
        assert errno_of(os.stat, place(mounted, gone)) == "ENOENT"


def test_who_removes_it_by_name_removes_it(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    ids = make_history(mounted)
    directory = os.O_RDONLY | os.O_DIRECTORY
    with opened(place(mounted, ids[1]) / "d", directory) as held:
        assert collect(mounted) == ([ids[0], ids[2]], 1)
        mounted.call("forget", checkpoints=[ids[1]])
        assert errno_of(os.stat, "e/own1", dir_fd=held) == "ESTALE"
        assert errno_of(os.stat, place(mounted, ids[1])) == "ENOENT"
    assert collect(mounted) == ([], 0)


@pytest.fixture
def impatient(
    mount: MountFunction, base: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Mounted, list[str]]:
    """A daemon that waits for nobody who holds nothing, with a history."""
    monkeypatch.setattr(mounting, "DAEMON", "tests.collecting.impatient")
    mounted = mount(base)
    return mounted, make_history(mounted)


def test_an_open_file_is_read_to_its_end(impatient: tuple[Mounted, list[str]]) -> None:
    """The checkpoint stays as long as the file is open; afterwards it goes like others."""
    mounted, ids = impatient
    path = place(mounted, ids[1]) / "d/big"
    with opened(path) as fd:
        assert os.pread(fd, 16, 0) == content(1)[:16]
        for _ in range(2):
            assert ids[1] not in collect(mounted)[0]
        assert os.pread(fd, SIZE, 16) == content(1)[16:]
        with opened(path, os.O_RDONLY) as again:
            assert os.fstat(again).st_size == SIZE
    eventually(lambda: ids[1] in collect(mounted)[0])
    assert not is_there(mounted, ids[1])
    assert is_there(mounted, ids[3])


def test_a_mapped_file_keeps_its_pages(impatient: tuple[Mounted, list[str]]) -> None:
    mounted, ids = impatient
    with opened(place(mounted, ids[2]) / "d/big") as fd:
        mapped = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
    with mapped:
        for _ in range(2):
            assert ids[2] not in collect(mounted)[0]
        assert mapped[:] == content(2)
    os.stat(place(mounted, ids[2]))  # else the kernel does not let go: it was asked in vain
    eventually(lambda: ids[2] in collect(mounted)[0])


def test_the_directory_of_a_process(impatient: tuple[Mounted, list[str]]) -> None:
    """A shell in a directory of a checkpoint that does nothing for a while."""
    mounted, ids = impatient
    with subprocess.Popen(
        ["sh", "-c", "read -r line; cat own0; ls .."],
        cwd=place(mounted, ids[0]) / "d/e",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        for _ in range(2):
            assert ids[0] not in collect(mounted)[0]
        assert shell.communicate(b"go on\n", timeout=60)[0] == b"0\nbig\ne\n"
    assert shell.returncode == 0
    os.stat(place(mounted, ids[0]))  # as above
    eventually(lambda: ids[0] in collect(mounted)[0])


def test_what_the_kernel_only_remembers_keeps_nothing(
    impatient: tuple[Mounted, list[str]],
) -> None:
    """Everything was looked at once, and is in the kernel's cache."""
    mounted, ids = impatient
    for checkpoint in ids:
        listing(place(mounted, checkpoint))
    eventually(lambda: collect(mounted)[1] == 0)
    assert [is_there(mounted, checkpoint) for checkpoint in ids] == [False, False, False, True]


# -- without one ------------------------------------------------------------------------------


class Here:
    """A collector whose thread is not started, five checkpoints, and a clock that is set.

    held: of which checkpoints the kernel was asked to let go.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig, self.now = rig, 1000.0
        (rig.store / "config.toml").write_text("[retention]\nkeep_days = 0\nkeep_last = 1\n")
        self.ids: list[str] = []
        for number in range(5):
            rig.create(b"f%d" % number, content(number))
            self.ids.append(rig.checkpoint(f"c{number}").id)
            rig.unlink(b"f%d" % number)
        self.visits = rig.volume.visits
        self.visits.clock = lambda: self.now
        self.asked: list[str] = []
        self.visits.let_go = self.asked.append
        busy, stop = threading.Event(), threading.Event()
        self.collector = Collector(rig.engine, threading.RLock(), rig.store, busy, stop)

    def look(self, number: int) -> None:
        """As `ls` does."""
        visit = self.visits.visit(self.ids[number])
        assert self.visits.view(visit).find(ROOT_INO, b"f%d" % number) is not None

    def left(self) -> list[str]:
        """Messages of the checkpoints that are left, without the one of the start."""
        self.rig.volume.look_again()
        return [record.message for record in all_checkpoints(self.rig.volume.reader)][1:]


@pytest.fixture
def here(volume: Rig) -> Here:
    return Here(volume)


def test_a_look_counts_for_ten_minutes(here: Here) -> None:
    here.look(0)
    here.now += 300
    here.look(2)
    here.now += 299
    here.collector._keep_to_policy()
    assert here.left() == ["c0", "c2", "c4"]
    here.now += 1
    here.collector._keep_to_policy()
    assert here.left() == ["c2", "c4"]
    here.now += 299
    here.collector._keep_to_policy()
    assert here.left() == ["c2", "c4"]
    here.now += 1
    here.collector._keep_to_policy()
    assert here.left() == ["c4"]
    assert here.asked == []


def test_the_kernel_is_asked_after_a_while(here: Here) -> None:
    here.look(1)
    visit = here.visits.visit(here.ids[1])
    here.visits.use(visit)
    here.collector._keep_to_policy()
    assert (here.left(), here.asked) == (["c1", "c4"], [])
    here.now += 1000
    here.collector._keep_to_policy()
    assert (here.left(), here.asked) == (["c1", "c4"], [here.ids[1]])
    here.visits.leave(visit)
    here.collector._keep_to_policy()
    assert here.left() == ["c4"]


def test_what_may_be_held_counts_for_a_day(here: Here) -> None:
    here.look(1)
    here.visits.use(here.visits.visit(here.ids[1]))
    here.now += 86_399
    here.collector._keep_to_policy()
    assert here.left() == ["c1", "c4"]
    here.now += 1
    here.collector._keep_to_policy()
    assert here.left() == ["c4"]


def test_room_is_made_of_others_first(here: Here) -> None:
    """The quota must be kept: in the end it takes what somebody looks into, too."""
    here.look(0)
    room = here.rig.volume.writer
    room.measure()
    room.set_quota(room.room.used + 1000)
    left = []

    def has_enough(enough: Callable[[], bool] = here.collector._has_enough) -> bool:
        left.append(here.left())
        return enough() and False

    here.collector._has_enough = has_enough  # type: ignore[method-assign]
    here.collector._make_room()
    steps = [row for at, row in enumerate(left) if not at or left[at - 1] != row]
    assert steps == [
        ["c0", "c1", "c2", "c3", "c4"],
        ["c0", "c2", "c3", "c4"],
        ["c0", "c3", "c4"],
        ["c0", "c4"],
        ["c4"],
    ]
