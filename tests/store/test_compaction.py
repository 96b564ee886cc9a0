"""A store's file written anew: smaller, with the same content, and whole whatever happens."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from cowfs.errors import CompactFailedError, StoreDamagedError, StoreFormatError, StoreLockedError
from cowfs.format import codec, condensed, records, version
from cowfs.format.condensed import DICTIONARY, MARK, TWIN, Condensed, is_short, unframed
from cowfs.format.segment import Part, encode_part, is_segment, part_of
from cowfs.format.version import decode_format
from cowfs.service.verify import verify
from cowfs.service.workspace import reading
from cowfs.store import compaction, condensing, steps
from cowfs.store.compaction import compact
from cowfs.store.env import TABLES, open_store
from cowfs.store.files import NEW
from cowfs.store.rewriting import silent
from cowfs.store.sums import PREFIX
from cowfs.types import BLOCK_SIZE
from tests.collecting.looking import collect_garbage, forget
from tests.crash.forks import Child
from tests.crash.forks import Report as Tell
from tests.support.volumes import START, Rig

STEPS = [step for step in steps.STEPS if step.startswith("compact.")]
Rows = dict[str, dict[bytes, bytes]]


@functools.cache
def text(number: int) -> bytes:
    words = random.Random(number)
    return b"".join(b"word%d " % words.randrange(3000) for _ in range(3000))


@pytest.fixture
def store(volume: Rig) -> Path:
    """A copy of a store with blocks of each codec, several states, and free pages; and the state
    that its head shows."""
    noise = random.Random(0).randbytes(50_000)
    volume.create(b"noise", noise)
    for number in range(20):
        volume.create(b"f%d" % number, text(number))
    volume.create(b"large", b"".join(text(number) for number in range(60, 76)) * 3)
    volume.checkpoint()
    for number in range(20):
        volume.write(b"f%d" % number, b"changed", 100)
    volume.write(b"f0", text(50)[:3000], 20_000)
    volume.write(b"noise", b"!", 30_000)
    volume.checkpoint()
    for number in range(15):
        volume.create(b"passing%d" % number, random.Random(number).randbytes(60_000))
    volume.volume.sync()
    for number in range(15):
        volume.unlink(b"passing%d" % number)
    volume.volume.sync()
    path = volume.volume.store.path
    copy = path.parent / "copy"
    copy.mkdir(mode=0o700)
    shutil.copy(path / "data.mdb", copy)
    shutil.copy(path / "lock.mdb", copy)
    return copy


def stored(path: Path) -> Rows:
    env = lmdb.open(str(path), max_dbs=len(TABLES), readonly=True)
    try:
        found = {}
        for name in TABLES:
            handle = env.open_db(name.encode(), create=False)
            with env.begin() as txn:
                found[name] = {bytes(key): bytes(value) for key, value in txn.cursor(db=handle)}
        return found
    finally:
        env.close()


def content(path: Path) -> Rows:
    """All records as they are used, the blocks as what they decode to and without segments. What
    the format record tells is checked and left out, and so are dictionaries and their tables' sums.
    """
    found = stored(path)
    blocks, meta = found["block"], found["meta"]
    condensed_ones = any(is_short(value[:-4]) for value in found["inode"].values())
    for table in ("inode", *condensed.TABLES):
        name = table.encode()
        copies = [meta.pop(prefix + name, None) for prefix in (DICTIONARY, TWIN)]
        assert copies.count(None) in (0, 2)
        checksum = Condensed(table, (copies[0] or bytes(4))[:-4])
        assert copies[0] is None or copies[0][:-4] == (copies[1] or b"")[:-4]
        found[table] = {k: unframed(checksum.open(k, v)) for k, v in found[table].items()}
        meta.pop(PREFIX + name, None)
    segments = {part.segment for value in blocks.values() if (part := part_of(value))}
    record = decode_format(meta.pop(b"format"))
    bits = version.SEGMENTS if segments else 0
    assert record.incompatible == bits | (version.CONDENSED if condensed_ones else 0)

    @functools.cache
    def raw(digest: bytes) -> bytes:
        reference = codec.delta_reference(blocks[digest])
        return codec.decode_block(blocks[digest], digest, raw(reference) if reference else None)

    return found | {"block": {digest: raw(digest) for digest in blocks.keys() - segments}}


def digest(path: Path) -> str:
    return hashlib.sha256((path / "data.mdb").read_bytes()).hexdigest()


def sound(path: Path) -> bool:
    with reading(path, None) as workspace:
        report = verify(workspace)
    return not report.problems


def test_it_is_smaller_and_says_the_same(store: Path) -> None:
    before = content(store)
    assert {value[0] for value in stored(store)["block"].values()} >= {codec.ZSTD, codec.PATCH}
    done = compact(store, silent)
    assert done.after == (store / "data.mdb").stat().st_blocks * 512 < done.before // 2
    assert content(store) == before
    assert sound(store)
    assert not (store / NEW).exists()


def test_small_files_and_all_their_versions_share_segments(store: Path) -> None:
    compact(store, silent)
    blocks = stored(store)["block"]
    parts = {digest: part for digest in blocks if (part := part_of(blocks[digest]))}
    assert len(parts) == 40
    segments = {part.segment: blocks[part.segment] for part in parts.values()}
    for segment, value in segments.items():
        size = int.from_bytes(value[1:5], "big")
        mine = sorted(part for part in parts.values() if part.segment == segment)
        assert [part.start for part in mine] == [0, *(part.end for part in mine[:-1])]
        assert len(value) < size == mine[-1].end <= 4 << 20


def test_what_only_deltas_needed_goes_with_them(volume: Rig) -> None:
    """The first version of a file is the reference of the second; nobody has it any more. That of
    a large file stays, since so does its delta."""
    large = b"".join(text(number) for number in range(60, 104))
    assert len(large) > 16 * BLOCK_SIZE
    volume.create(b"file", text(1))
    volume.create(b"other", text(2))
    volume.create(b"large", large)
    one = volume.checkpoint()
    volume.write(b"file", b"changed", 100)
    volume.write(b"large", b"changed", 100)
    volume.checkpoint()
    forget(volume, [one.id])
    collect_garbage(volume)
    volume.close()
    before = content(volume.store)["block"]
    assert text(1) in before.values(), "the delta needs it"
    compact(volume.store, silent)
    after = content(volume.store)["block"]
    assert {digest for digest in before if digest not in after} == {codec.block_hash(text(1))}
    assert large[:BLOCK_SIZE] in after.values()
    assert sound(volume.store)
    volume.start()
    assert volume.read(b"file") == text(1)[:100] + b"changed" + text(1)[107:]


def test_what_hardly_shrinks_stays_by_itself(store: Path) -> None:
    """But for the smallest."""
    before = {k for k, v in stored(store)["block"].items() if v[0] == codec.RAW}
    compact(store, silent)
    blocks = stored(store)["block"]
    (noise,) = [k for k in before if len(blocks[k]) > 50_000]
    assert blocks[noise][0] == codec.RAW
    patch = next(v for v in blocks.values() if v[0] == codec.PATCH)
    assert codec.delta_reference(patch) == noise


def test_what_stands_alone_is_compressed_harder(store: Path) -> None:
    def alone() -> dict[bytes, int]:
        blocks = stored(store)["block"].items()
        return {k: len(v) for k, v in blocks if v[0] == codec.ZSTD and not is_segment(v)}

    before = alone()
    compact(store, silent)
    after = alone()
    assert len(after) >= 16
    assert sum(after.values()) < 0.95 * sum(before[digest] for digest in after)


def test_a_segment_begins_with_what_the_present_state_shows(store: Path, tmp_path: Path) -> None:
    compact(store, silent)
    blocks = stored(store)["block"]
    rig = Rig(store, None)
    try:
        reader = rig.volume.reader
        live = set()
        for path, facts in rig.tree().items():
            if path != b"large" and facts.content:
                live |= {digest for _, digest in rig.view.snapshot.extents(rig.at(path).content)}
        assert reader.count("block") == len(blocks)
    finally:
        rig.finish(check=False)
    parts = {digest: part for digest in live if (part := part_of(blocks[digest]))}
    assert len(parts) >= 20
    for segment in {part.segment for part in parts.values()}:
        mine = [part for part in parts.values() if part.segment == segment]
        assert max(part.end for part in mine) == sum(part.end - part.start for part in mine)


@pytest.fixture
def always_condensed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also tables for which a dictionary does not pay."""
    monkeypatch.setattr(condensing, "_WORTH", 0)


@pytest.mark.usefixtures("always_condensed")
def test_records_are_condensed(store: Path) -> None:
    before = content(store)
    compact(store, silent)
    found = stored(store)
    assert any(value[:1] == MARK for value in found["operation"].values())
    assert content(store) == before
    assert sound(store)
    newest: set[bytes] = set()
    for key, value in found["inode"].items():
        assert is_short(value[:-4]) == (key[:8] in newest and len(value) > 4)
        newest.add(key[:8])
    assert any(is_short(value[:-4]) for value in found["inode"].values())


@pytest.mark.usefixtures("always_condensed")
@pytest.mark.parametrize("times", [1, 2])
def test_history_goes_on_over_condensed_records(store: Path, times: int) -> None:
    for _ in range(times):
        compact(store, silent)
        rig = Rig(store, None)
        try:
            rig.tree()
            before = rig.read(b"f0")
            rig.write(b"f0", b"more", 5)
            made = rig.checkpoint()
            rig.restore(START)
            rig.restore(made)
            assert rig.read(b"f0") == before[:5] + b"more" + before[9:]
        finally:
            rig.finish()
    assert sound(store)


@pytest.mark.usefixtures("always_condensed")
def test_a_table_with_a_damaged_record_stays_as_it_is(store: Path) -> None:
    env = lmdb.open(str(store), max_dbs=len(TABLES))
    with env.begin(write=True) as txn:
        for name in (b"operation", b"inode"):
            table = env.open_db(name, txn=txn)
            key, value = max((bytes(k), bytes(v)) for k, v in txn.cursor(db=table))
            txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=table)
    env.close()
    before = stored(store)
    compact(store, silent)
    after = stored(store)
    assert (after["operation"], after["inode"]) == (before["operation"], before["inode"])


def test_a_second_time_there_is_nothing_to_gain(store: Path) -> None:
    first = compact(store, silent)
    before = digest(store)
    second = compact(store, silent)
    assert second.before == second.after == first.after
    assert digest(store) == before
    assert not (store / NEW).exists()


def test_not_while_somebody_has_it(volume: Rig) -> None:
    with pytest.raises(StoreLockedError):
        compact(volume.volume.store.path, silent)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step(store: Path, step: str) -> None:
    before, size = content(store), (store / "data.mdb").stat().st_size

    def work(report: Tell) -> None:
        steps.arm(step)
        compact(store, silent)
        report("survived")

    child = Child(work)
    assert list(child.reports()) == []
    assert child.wait()
    assert content(store) == before
    assert sound(store)
    renamed = step in ("compact.named", "compact.done")
    assert ((store / "data.mdb").stat().st_size < size) == renamed
    compact(store, silent)
    assert content(store) == before
    assert (store / "data.mdb").stat().st_size < size
    assert not (store / NEW).exists()


def without_room(patch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        values = list(real(path))
        values[4] = 10  # f_bavail
        return os.statvfs_result(values)

    patch.setattr(os, "statvfs", full)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def garble(*_: bytes) -> bytes:
    return codec.encode_block(b"of another block")


def shifted(part: Part) -> bytes:
    return encode_part(Part(part.segment, part.start + 1, part.end + 1))


@pytest.mark.parametrize(
    ("harm", "detail"),
    [
        (without_room, "MiB of room"),
        (lambda patch: patch.setattr(compaction, "_append", refuse), "No space left"),
        (lambda patch: patch.setattr(compaction, "_append", lambda *_: None), "is not the same"),
        (lambda patch: patch.setattr(codec, "repack", garble), "table block is not the same"),
        (
            lambda patch: patch.setattr(compaction, "encode_segment", garble),
            "table block is not the same",
        ),
        (
            lambda patch: patch.setattr(compaction, "encode_part", shifted),
            "table block is not the same",
        ),
    ],
    ids=["no room", "the disk fills", "incomplete", "another block", "segment", "another place"],
)
def test_what_fails_leaves_the_old_file(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[pytest.MonkeyPatch], None],
    detail: str,
) -> None:
    before = digest(store)
    with monkeypatch.context() as patch:
        harm(patch)
        with pytest.raises(CompactFailedError, match=detail):
            compact(store, silent)
    assert digest(store) == before
    assert not (store / NEW).exists()


def test_a_damaged_block_stays_as_it_is(store: Path) -> None:
    """What a repair may still find elsewhere must not be made worse, nor look sound."""
    env = lmdb.open(str(store), max_dbs=len(TABLES))
    blocks = env.open_db(b"block")
    with env.begin(write=True) as txn:
        key, value = next(
            (bytes(k), bytes(v)) for k, v in txn.cursor(db=blocks) if v[0] == codec.ZSTD
        )
        damaged = value[:-1] + bytes([value[-1] ^ 1])
        txn.put(key, damaged, db=blocks)
    env.close()
    compact(store, silent)
    assert stored(store)["block"][key] == damaged


def test_a_damaged_part_keeps_its_segment(store: Path) -> None:
    compact(store, silent)
    env = lmdb.open(str(store), max_dbs=len(TABLES), map_size=1 << 30)
    blocks, meta = env.open_db(b"block"), env.open_db(b"meta")
    with env.begin(write=True) as txn:
        rows = [(bytes(k), bytes(v)) for k, v in txn.cursor(db=blocks)]
        key, value = next(row for row in rows if part_of(row[1]))
        damaged = value[:-1] + bytes([value[-1] ^ 1])
        txn.put(key, damaged, db=blocks)
        txn.put(b"passing", bytes(3 << 20), db=meta)
    with env.begin(write=True) as txn:
        txn.delete(b"passing", db=meta)
    env.close()
    done = compact(store, silent)
    assert done.after < done.before
    found = stored(store)["block"]
    assert found[key] == damaged
    part = part_of(damaged)
    assert part is not None
    assert found[part.segment] == dict(rows)[part.segment]
    others = {part.segment for value in found.values() if (part := part_of(value))}
    assert sum(is_segment(value) for value in found.values()) == len(others)


def test_parts_go_on_as_blocks_of_any_kind(store: Path) -> None:
    """They are read, found again by their hash, referred to by deltas; and put together again."""
    compact(store, silent)
    rig = Rig(store, None)
    try:
        rig.tree()
        before, count = rig.read(b"f3"), rig.volume.reader.count("block")
        rig.create(b"again", before)
        rig.volume.sync()
        rig.volume.look_again()
        assert rig.volume.reader.count("block") == count
        rig.write(b"f3", b"once more", 10_000)
        rig.checkpoint()
        rig.volume.look_again()
        rows = dict(rig.volume.reader.scan("block"))
        deltas = [v for v in rows.values() if codec.delta_reference(v) and not part_of(v)]
        assert any(part_of(rows[codec.delta_reference(value) or b""]) for value in deltas)
        rig.volume._blocks.clear()
        assert rig.read(b"again") == before
        assert rig.read(b"f3") == before[:10_000] + b"once more" + before[10_009:]
    finally:
        rig.finish(check=False)
    assert sound(store)
    kept = content(store)
    compact(store, silent)
    assert content(store) == kept
    assert sound(store)


def test_a_program_that_knows_no_segments_refuses_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(store, silent)
    monkeypatch.setattr(version, "KNOWN_INCOMPATIBLE", 0)
    with pytest.raises(StoreFormatError, match="unknown incompatible features 0x5"):
        open_store(store, writable=True)
    with pytest.raises(StoreFormatError):
        compact(store, silent)


def test_damaged_pages_are_not_copied(store: Path) -> None:
    with open(store / "data.mdb", "r+b") as file:
        file.seek(4 * 4096)
        file.write(bytes(40 * 4096))
    before = digest(store)
    with pytest.raises(StoreDamagedError, match="page"):
        compact(store, silent)
    assert digest(store) == before


def test_one_of_a_newer_version_is_left_alone(store: Path) -> None:
    env = lmdb.open(str(store), max_dbs=len(TABLES))
    meta = env.open_db(b"meta")
    with env.begin(write=True) as txn:
        value = txn.get(b"format", db=meta)
        assert value is not None
        record = decode_format(bytes(value))
        newer = records.FormatRecord(
            99, 0, 0, record.uuid, record.created, record.block_size, record.checksum
        )
        txn.put(b"format", records.encode(newer), db=meta)
    env.close()
    before = digest(store)
    with pytest.raises((StoreFormatError, StoreDamagedError)):
        compact(store, silent)
    assert digest(store) == before


def test_who_reads_the_old_file_goes_on(store: Path) -> None:
    before = content(store)
    begin, go_on = os.pipe()

    def work(report: Tell) -> None:
        env = lmdb.open(str(store), max_dbs=len(TABLES), readonly=True)
        handle = env.open_db(b"inode", create=False)
        with env.begin() as txn:
            report("opened")
            os.read(begin, 1)
            report(len(list(txn.cursor(db=handle))))

    child = Child(work)
    reports = child.reports()
    assert next(reports) == ["opened"]
    compact(store, silent)
    os.write(go_on, b"x")
    assert next(reports) == [len(before["inode"])]
    assert list(reports) == []
    assert not child.wait()
    os.close(begin)
    os.close(go_on)
