"""Looking into checkpoints without restoring them: the same tree as then, whatever came since."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format import records
from cowfs.service.collecting import Pace, collect
from cowfs.service.removing import forget
from cowfs.types import ROOT_INO
from cowfs.volume import data, history
from cowfs.volume.browsing import CHECKPOINT, DIRECTORY, LINK, Name, NotStoredError, SealedView
from cowfs.volume.posix import PosixError
from tests.support.steps import Worker
from tests.support.volumes import AUTHOR, START, Facts, Rig, errno_of, facts_of
from tests.volume.test_history import change_everything, fill_base, ruin

OpenRig = Callable[[], Rig]


def view_of(rig: Rig, checkpoint: str) -> SealedView:
    visits = rig.volume.visits
    return visits.view(visits.visit(checkpoint))


def listing(rig: Rig, checkpoint: str, directory: int) -> list[tuple[bytes, int]]:
    """As the mount lists a directory: what has to be brought is committed first."""
    view = view_of(rig, checkpoint)
    try:
        return view.listing(directory)
    except NotStoredError:
        view.bring(directory)
        rig.volume.sync()
        return view_of(rig, checkpoint).listing(directory, brought=True)


def tree_of(rig: Rig, checkpoint: str) -> dict[bytes, Facts]:
    """Everything that a checkpoint shows, by path; each name is looked up, too."""
    out: dict[bytes, Facts] = {}
    pending: list[tuple[bytes, int]] = [(b"", ROOT_INO)]
    while pending:
        path, ino = pending.pop()
        inode = view_of(rig, checkpoint).inode(ino)
        if inode.is_dir:
            prefix = path + b"/" if path else b""
            for name, packed in listing(rig, checkpoint, ino):
                found = view_of(rig, checkpoint).find(ino, name)
                assert found is not None
                assert found.ino << 4 | found.kind == packed
                pending.append((prefix + name, found.ino))
        view = view_of(rig, checkpoint)
        out[path] = facts_of(view, view.inode(ino))
    return out


# -- the same tree ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_checkpoint_as_it_was(volume: Rig, seed: int) -> None:
    rng, worker = random.Random(seed), Worker(volume, seed)
    states: dict[str, dict[bytes, Facts]] = {}
    volume.volume.visits.most_views = 3
    for _ in range(25):
        if not volume.ls():
            volume.create(b"again")
        for _ in range(rng.randrange(1, 12)):
            worker.step()
            if not volume.ls():
                volume.create(b"again")
        if rng.random() < 0.3 and states:
            volume.restore(rng.choice(sorted(states)))
        tree = volume.tree()
        states[volume.checkpoint().id] = tree
        old = rng.choice(sorted(states))
        if volume.exists(b"head") and not volume.at(b"head").is_file:
            volume.remove_tree(b"head")
        volume.save(b"head", rng.randbytes(100))
        assert tree_of(volume, old) == states[old]
    head = volume.tree()
    for checkpoint, tree in states.items():
        assert tree_of(volume, checkpoint) == tree
    assert volume.tree() == head


@pytest.mark.parametrize("seed", range(3))
def test_as_it_was_after_others_were_removed(volume: Rig, seed: int) -> None:
    """While somebody looks, others are removed and what only those needed is collected."""
    rng, worker = random.Random(seed), Worker(volume, seed)
    states: dict[str, dict[bytes, Facts]] = {}
    visits = volume.volume.visits
    for number in range(30):
        for _ in range(rng.randrange(1, 8)):
            worker.step()
            if not volume.ls():
                volume.create(b"again")
        tree = volume.tree()
        states[volume.checkpoint().id] = tree
        if number % 6 == 5:
            for checkpoint in sorted(states):
                assert tree_of(volume, checkpoint) == states[checkpoint]
            gone = rng.sample(sorted(states), 3)
            held = visits.visit(gone[0])
            visits.use(held)
            forget(volume.engine, contextlib.nullcontext(), gone)
            collect(volume.engine, contextlib.nullcontext(), Pace(), lambda **_: None)
            for checkpoint in gone:
                del states[checkpoint]
                assert errno_of(view_of, volume, checkpoint) == errno.ESTALE
            visits.leave(held)
    for checkpoint, tree in states.items():
        assert tree_of(volume, checkpoint) == tree


def test_at_once_and_in_another_life(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    rig = open_rig()
    start = rig.tree()
    first = rig.checkpoint().id
    change_everything(rig)
    second = rig.tree()
    sealed = history.seal(rig.volume, AUTHOR)  # its group may be on its way
    change = rig.checkpoint().id
    ruin(rig)
    for _ in range(2):
        assert tree_of(rig, first) == start
        assert tree_of(rig, sealed.checkpoint.id) == second
        assert tree_of(rig, change) == second
        rig.reopen()


def test_a_checkpoint_that_is_not_committed_is_not_there(volume: Rig) -> None:
    volume.volume.sync()
    sealed = history.seal(volume.volume, AUTHOR)
    volume.volume.writer.wait(sealed.group)
    visits = volume.volume.visits
    # Committed, but this thread did not look yet.
    assert visits.find_name(sealed.checkpoint.id.encode()) is None
    volume.volume.reap()
    assert visits.find_name(sealed.checkpoint.id.encode()) == Name(
        CHECKPOINT, sealed.checkpoint.id.encode()
    )


# -- the base ---------------------------------------------------------------------------------


def expected_of_base(base: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for above, directories, files in os.walk(base):
        for name in directories:
            found[os.path.relpath(os.path.join(above, name), base)] = None
        for name in files:
            path = os.path.join(above, name)
            if os.path.islink(path):
                content: bytes = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(os.lstat(path).st_mode):
                content = Path(path).read_bytes()
            else:
                content = b""
            found[os.path.relpath(path, base)] = content
    return found


def contents(tree: dict[bytes, Facts]) -> dict[str, bytes | None]:
    return {
        os.fsdecode(path): None if stat.S_ISDIR(facts.mode) else facts.content
        for path, facts in tree.items()
        if path
    }


def test_a_base_that_nobody_looked_into(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    expected = expected_of_base(base)
    rig = open_rig()
    first = rig.checkpoint().id
    assert contents(tree_of(rig, first)) == expected
    assert rig.tree() == tree_of(rig, first) == tree_of(rig, START)


def test_a_directory_that_was_moved_before_it_was_listed(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    expected = expected_of_base(base)
    rig = open_rig()
    rig.rename(b"d", b"moved")
    assert contents(tree_of(rig, START)) == expected
    rig.remove_tree(b"moved")
    assert contents(tree_of(rig, START)) == expected


def test_a_directory_that_only_a_checkpoint_has(open_rig: OpenRig, base: Path) -> None:
    """It was adopted from outside, and restored away before anybody listed it."""
    (base / "f").write_text("first")
    rig = open_rig()
    rig.tree()
    first = rig.checkpoint().id
    rig.close()
    fill_base(base)
    expected = expected_of_base(base)
    rig.start()
    rig.ls()
    adopted = rig.checkpoint().id
    rig.restore(first)
    assert rig.ls() == [b"f"]
    assert contents(tree_of(rig, adopted)) == expected
    assert rig.ls() == [b"f"]
    rig.restore(adopted)
    assert rig.tree() == tree_of(rig, adopted)


def test_content_that_was_lost(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    (base / "g").write_text("stays")
    rig = open_rig()
    rig.tree()
    first = rig.checkpoint().id
    rig.close()
    (base / "f").write_text("changed outside")
    rig.start()
    view = view_of(rig, first)
    lost, stays = view.find(ROOT_INO, b"f"), view.find(ROOT_INO, b"g")
    assert lost is not None
    assert stays is not None
    assert errno_of(data.read, view, lost, 0, 3) == errno.EIO
    assert data.read(view, stays, 0, 5) == b"stays"
    assert ("lost", "f") in rig.problems()
    assert rig.read(b"f") == b"changed outside"


def test_a_directory_that_was_lost(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("nobody saw it")
    rig = open_rig()
    rig.ls()
    rig.checkpoint()
    rig.close()
    shutil.rmtree(base / "d")
    rig.start()
    rig.ls()
    view = view_of(rig, START)
    directory = view.find(ROOT_INO, b"d")
    assert directory is not None
    assert errno_of(listing, rig, START, directory.ino) == errno.EIO
    assert errno_of(view.find, directory.ino, b"f") == errno.EIO
    assert {row["kind"] for row in rig.volume.problems} >= {"lost"}


# -- names ------------------------------------------------------------------------------------


def labelled(rig: Rig, label: str) -> str:
    """A checkpoint with a label that is refused now, and was not always."""
    sealed = history.seal(rig.volume, AUTHOR, kind="manual", message="", label=label)
    rig.volume.sync()
    return sealed.checkpoint.id


def test_names_of_checkpoints(volume: Rig) -> None:
    first = volume.checkpoint(label="start").id
    second = volume.checkpoint(label="release/1.2").id
    third = volume.checkpoint(label="release/2/beta").id
    fourth = labelled(volume, "release")
    fifth = labelled(volume, "no//path")
    visits = volume.volume.visits
    assert dict(visits.names()) == {
        **{name.encode(): CHECKPOINT for name in (START, first, second, third, fourth, fifth)},
        b"start": LINK,
        b"release": LINK,
        b"no": DIRECTORY,
    }
    assert list(visits.names(b"release")) == [(b"1.2", LINK), (b"2", DIRECTORY)]
    assert list(visits.names(b"no")) == []
    assert visits.find_name(b"start") == Name(LINK, first.encode())
    assert visits.find_name(b"release/1.2") == Name(LINK, b"../" + second.encode())
    assert visits.find_name(b"release/2/beta") == Name(LINK, b"../../" + third.encode())
    assert visits.find_name(b"release/2") == Name(DIRECTORY)
    assert visits.find_name(first.encode()[:8]) == Name(LINK, first.encode())
    assert visits.find_name(first.encode()[:8].upper()) == Name(LINK, first.encode())
    assert visits.find_name(first.encode()[:3]) is None
    assert visits.find_name(b"nothing") is None
    assert visits.find_name(b"@") is None
    assert visits.find_name(b"x" * 5000) is None
    # A store that somebody made: no link leads anywhere else.
    volume.volume.extra.put("label", b"trap", b"../../../../etc")
    volume.volume.extra.put("label", b"no/../../trap", first.encode())
    volume.volume.sync()
    assert visits.find_name(b"trap") is None
    assert list(visits.names(b"no")) == []
    volume.volume.extra.delete("label", b"trap")
    volume.volume.extra.delete("label", b"no/../../trap")


def test_a_prefix_of_two_ids_is_none(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["aaaa11110000", "aaaa22220000"])
    monkeypatch.setattr(history, "new_checkpoint_id", lambda _: next(ids))
    volume.checkpoint()
    volume.checkpoint()
    visits = volume.volume.visits
    assert visits.find_name(b"aaaa") is None
    assert visits.find_name(b"aaaa1") == Name(LINK, b"aaaa11110000")


# -- many -------------------------------------------------------------------------------------


def test_ten_thousand_checkpoints(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    volume.create(b"f", b"x")
    ids = {START}
    for at in range(10_000):
        label = f"label{at}" if at < 100 else ""
        ids.add(history.seal(volume.volume, AUTHOR, label=label).checkpoint.id)
    volume.volume.sync()
    visits = volume.volume.visits
    let_go: list[str] = []
    visits.let_go = let_go.append

    def refuse(*_: object) -> None:
        raise AssertionError("a listing reads no record")

    with monkeypatch.context() as patch:
        patch.setattr(volume.volume.reader, "get", refuse)
        names = dict(visits.names())
    assert {name.decode() for name, kind in names.items() if kind == CHECKPOINT} == ids
    assert len(names) == len(ids) + 100
    assert len(visits) == 0

    for checkpoint in ids - {START}:  # as find(1) does, while the kernel lets everything go
        visit = visits.visit(checkpoint)
        assert visits.view(visit).find(ROOT_INO, b"f") is not None
        visits.use(visit)
        visits.leave(visit)
    assert len(visits) <= visits.most_unused
    assert len(visits._views) <= visits.most_views

    held = sorted(ids)[: visits.most_used + 10]
    for checkpoint in held:  # the kernel keeps everything, until it is told
        visits.use(visits.visit(checkpoint))
    assert let_go == held[:10]
    for checkpoint in held:
        visits.leave(visits.visit(checkpoint))
    assert len(visits) <= visits.most_unused
    assert visits.epochs() == set()


def test_numbers_are_used_again(volume: Rig) -> None:
    visits = volume.volume.visits
    visits.most_numbers, visits.most_unused = 3, 2
    ids = [volume.checkpoint().id for _ in range(5)]
    held = [visits.visit(checkpoint) for checkpoint in ids[:3]]
    # Nobody refers to the first: it made room.
    assert errno_of(visits.numbered, held[0].number) in (0, errno.ESTALE)
    held = []
    for checkpoint in ids[:3]:
        visit = visits.visit(checkpoint)
        visits.use(visit)
        held.append(visit)
    assert sorted(visit.number for visit in held) == [1, 2, 3]
    assert errno_of(visits.visit, ids[3]) == errno.ENFILE
    assert visits.epochs() == {visit.epoch for visit in held}
    visits.leave(held[1])
    again = visits.visit(ids[3])
    assert again.number == held[1].number
    assert again.turn != held[1].turn
    assert visits.numbered(again.number) is again
    visits.leave(held[1], 5)  # late: it is nobody's
    assert visits.visit(ids[3]) is again


def test_inodes_in_memory_are_bounded(volume: Rig) -> None:
    for at in range(50):
        volume.create(b"f%d" % at, b"content %d" % at)
    checkpoint = volume.checkpoint().id
    visits = volume.volume.visits
    visits.most_inodes = 10
    visit = visits.visit(checkpoint)
    opened = visits.view(visit).find(ROOT_INO, b"f7")
    assert opened is not None
    for at in range(50):
        assert visits.view(visit).find(ROOT_INO, b"f%d" % at) is not None
        assert len(visits.view(visit).inodes) <= 12
    assert data.read(visits.view(visit), opened, 0, 99) == b"content 7"


# -- removed ----------------------------------------------------------------------------------


def test_a_checkpoint_that_was_removed_is_gone(volume: Rig) -> None:
    volume.create(b"f", b"then")
    record = volume.checkpoint()
    visits = volume.volume.visits
    visit = visits.visit(record.id)
    visits.use(visit)
    view = visits.view(visit)
    inode = view.find(ROOT_INO, b"f")
    assert inode is not None
    key = record.id.encode()
    volume.volume.extra.delete("checkpoint", key)
    assert visits.epochs() == {record.epoch}
    volume.volume.sync()
    assert errno_of(visits.view, visit) == errno.ESTALE
    assert visits.epochs() == set()
    assert visits.find_name(key) is None
    assert errno_of(visits.visit, "0" * 12) == errno.ESTALE
    volume.volume.extra.put("checkpoint", key, records.encode(record))
    volume.volume.sync()
    assert data.read(visits.view(visit), inode, 0, 9) == b"then"


def test_damage_is_an_error_of_one_thing(volume: Rig) -> None:
    volume.create(b"f", b"then")
    volume.create(b"g", b"too")
    checkpoint = volume.checkpoint().id
    volume.check = False
    inode = volume.at(b"f")
    reader = volume.volume.reader
    for key, _ in reader.scan("extent", inode.ino.to_bytes(8, "big")):
        volume.volume.extra.put("extent", key, bytes(32))
    volume.volume.sync()
    view = view_of(volume, checkpoint)
    damaged, whole = view.find(ROOT_INO, b"f"), view.find(ROOT_INO, b"g")
    assert damaged is not None
    assert whole is not None
    with pytest.raises(PosixError, match=os.strerror(errno.EIO)):
        data.read(view, damaged, 0, 4)
    assert data.read(view, whole, 0, 4) == b"too"
    assert volume.problems() == [("damaged", "f")]
