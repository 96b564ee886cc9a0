"""Stores that somebody made, or that were damaged: whoever opens them ends with a result or an
error, and in time."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cowfs.format import keys, records, sessions
from cowfs.service.apply import apply
from cowfs.service.export import export_tree
from cowfs.service.sealing import Pace, seal
from cowfs.service.workspace import ReadOnly, reading
from tests.cli.command import Cowfs
from tests.hostile import stores
from tests.support.volumes import AUTHOR, Rig
from tests.verify.sample import Hands, Sample
from tests.verify.test_structure import leaf_of

COUNT = 80
"""More by `python -m tests.hostile.stores --count N`."""


def test_bytes_changed_at_random(fast_path: Path) -> None:
    """Nobody is ended by a signal, meets another exception, or waits for ever; and both happens
    that can: some are refused, some work."""
    (fast_path / "sound").mkdir()
    counts, wrong = stores.run(fast_path, range(COUNT))
    assert wrong == []
    ways = ("verify", "use", "search", "converse")
    assert set(counts) == {f"{way}: {end}" for way in ways for end in ("done", "refused")}


# -- records that lead in circles, or far away --------------------------------------------------


def _directory_in_itself(hands: Hands) -> None:
    hands.name("src/deep/inner", b"loop", hands.inos["src"], 4, 1)


def _origins_of_each_other(hands: Hands) -> None:
    one, other = hands.inos["docs"], hands.inos["empty"]
    hands.put("origin", keys.pack_id(one), records.pack_origin(0, other, b"x"))
    hands.put("origin", keys.pack_id(other), records.pack_origin(0, one, b"x"))


def _link_to_below(hands: Hands) -> None:
    source, below = hands.inos["src"], hands.inos["src/deep/inner"]
    for key, _ in hands.rows("link", keys.pack_id(source)):
        hands.drop("link", key)
    hands.put("link", keys.link_key(source, below, b"src", 1), b"\4")


def _epoch_of_itself(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), records.EpochRecord, parent=3)


def _parent_of_tomorrow(hands: Hands) -> None:
    epoch = records.EpochRecord
    hands.change_record("epoch", keys.pack_id(4), epoch, parent=1 << 60, run_start=4)


def _endless_line(hands: Hands) -> None:
    """The head is an epoch with a number that no counting reaches."""
    head = 1 << 60
    hands.put("epoch", keys.pack_id(head), hands.get("epoch", keys.pack_id(4)))
    hands.change_record("epoch", keys.pack_id(head), records.EpochRecord, run_start=0)
    hands.change_record("branch", b"main", records.BranchRecord, head=head)


def _endless_file(hands: Hands) -> None:
    hands.change_inode("src/main", 1, size=(1 << 63) - 1)


def _endless_base_file(hands: Hands) -> None:
    hands.change_inode("docs/readme", 0, size=1 << 62, base_size=1 << 62)


def _session(hands: Hands, **fields: object) -> None:
    hands.change_record("session", b"s1", sessions.SessionRecord, **fields)


def _context(hands: Hands, *marks: sessions.Mark) -> None:
    for key, value in hands.rows("context"):
        record = msgspec.structs.replace(sessions.unpack_context(value), marks=marks)
        hands.put("context", key, sessions.pack_context(record))


def _endless_transcript(hands: Hands) -> None:
    key = keys.pack_id(1)
    record = records.decode(hands.get("transcript", key), sessions.TranscriptRecord)
    longer = msgspec.structs.replace(record, length=(1 << 64) - 1)
    hands.put("transcript", key, records.encode(longer))
    _context(hands, sessions.Mark(1, (1 << 64) - 1, bytes(32)), sessions.Mark(0, -5, b""))


def _session_of_itself(hands: Hands) -> None:
    _session(hands, parent="s1/a1", files=(1, 1, 0, 2, (1 << 64) - 1))


def _process_that_cannot_be(hands: Hands) -> None:
    _session(hands, pid=-(1 << 60), born=-1, transcript=b"/dev/zero\0", boot="\n")


MADE_UP = [
    _endless_transcript,
    _session_of_itself,
    _process_that_cannot_be,
    _directory_in_itself,
    _origins_of_each_other,
    _link_to_below,
    _epoch_of_itself,
    _parent_of_tomorrow,
    _endless_line,
    _endless_file,
    _endless_base_file,
]


def export(sample: Sample) -> None:
    with opened(sample) as workspace:
        export_tree(workspace, workspace.point("@"), sample.store.parent / "out")


def archive(sample: Sample) -> None:
    with opened(sample) as workspace:
        dest = sample.store.parent / "out.tar"
        export_tree(workspace, workspace.point("@"), dest, tar=True)


def select(sample: Sample) -> None:
    with opened(sample) as workspace:
        workspace.point("@~5")


def seal_all(sample: Sample) -> None:
    seal(Rig(sample.store, sample.base).engine, [], Pace(), lambda **_: None)


def apply_all(sample: Sample) -> None:
    apply(Rig(sample.store, sample.base).engine, AUTHOR, lambda **_: None)


@contextlib.contextmanager
def opened(sample: Sample) -> Iterator[ReadOnly]:
    fd = os.open(sample.base, os.O_RDONLY | os.O_DIRECTORY)
    with reading(sample.store, fd) as workspace:
        yield workspace


@pytest.mark.parametrize("make", MADE_UP, ids=lambda fn: fn.__name__.strip("_"))
def test_reading_ends(sample: Sample, make: Callable[[Hands], None]) -> None:
    """`outcome` ends what does not within half a minute, and says so."""
    with sample.open() as hands:
        make(hands)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, limit[1]))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for use in (
            stores.verify,
            stores.use,
            stores.search,
            stores.converse,
            export,
            archive,
            select,
            seal_all,
            apply_all,
        ):
            at = sample.store.parent / use.__name__
            shutil.copytree(sample.base, at / "base", symlinks=True)
            place = replace(sample.copy(at / "store"), base=at / "base")
            assert stores.outcome(use, place) in ("done", "refused"), use.__name__
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


# -- by the command -----------------------------------------------------------------------------


def test_the_command_refuses_what_lmdb_would_stumble_over(
    cowfs: Cowfs, project: Path, needs_fuse: None
) -> None:
    """Each command that would read or write the file; `verify` says what is damaged. The file is a
    copy, as somebody else's would be."""
    cowfs.in_process = True
    cowfs.ok("mount", "--store", cowfs.top / "store", project)
    cowfs.ok("unmount", project)
    store, sound = cowfs.top / "store", cowfs.top / "sound"
    os.rename(store / "data.mdb", sound)
    shutil.copy(sound, store / "data.mdb")
    assert cowfs.ok("log", cwd=project)["checkpoints"]  # a sound copy is as good
    page = leaf_of(Sample(store, project, {}, {}), "inode")
    with open(store / "data.mdb", "r+b") as file:
        file.seek(page * stores.PAGE + 16)
        file.write(b"\xf8\xff")  # where its first node is
    cowfs.cwd = project
    commands: list[tuple[str, ...]] = [("mount", "."), ("log",), ("diff",), ("apply",)]
    for command in [*commands, ("checkpoint",), ("export", "@", "../out")]:
        error = cowfs.fails(*command)
        assert error["code"] == "COWFS_STORE_DAMAGED", command
        assert f"page {page} of its table inode" in error["message"]
    report = cowfs.run("verify", "--json").document
    assert report["error"]["code"] == "COWFS_VERIFY_FAILED"
    shutil.copy(sound, store / "data.mdb")
    cowfs.ok("mount", ".")
