"""What is stored of a conversation's files as they grow, are replaced, and vanish."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.agents.base import Source
from cowfs.errors import StoreFullError
from cowfs.format.sessions import (
    LINES,
    PIECE_BYTES,
    WHOLE,
    SessionRecord,
    pack_piece,
    piece_key,
)
from cowfs.service.sessions import transcripts as module
from cowfs.store.group import TransactionGroup
from cowfs.volume.posix import outlive
from tests.sessions.talking import LINE, Talk, pieces, sessions, transcripts
from tests.support.volumes import Rig

MIB = 1 << 20


@pytest.fixture
def talk(volume: Rig, tmp_path: Path) -> Talk:
    return Talk(volume, tmp_path / "agent")


# -- lines --------------------------------------------------------------------------------------


def test_only_what_is_new_is_stored(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.says(LINE + LINE)
    two = talk.checkpoint()
    assert pieces(talk.rig) == {(1, 0): len(LINE), (1, len(LINE)): 2 * len(LINE)}
    assert talk.conversation(one) == {"main": LINE}
    assert talk.conversation(two) == {"main": 3 * LINE}


def test_nothing_new_writes_no_piece(talk: Talk) -> None:
    talk.says(LINE)
    first = talk.keep()
    for _ in range(3):
        assert talk.keep().marks == first.marks
    assert pieces(talk.rig) == {(1, 0): len(LINE)}


def test_a_line_that_has_not_ended_waits(talk: Talk) -> None:
    talk.says(LINE + b'{"cut')
    assert talk.kept() == {"main": LINE}
    talk.says(b" off")
    assert talk.kept() == {"main": LINE}
    talk.says(b'"}\n{')
    assert talk.kept() == {"main": LINE + b'{"cut off"}\n'}


def test_a_file_without_any_line_is_not_there_yet(talk: Talk) -> None:
    talk.says(b"no newline")
    captured = talk.keep()
    assert (captured.marks, captured.complete) == ((), True)
    assert transcripts(talk.rig) == {}
    talk.says(b"\n")
    assert talk.kept() == {"main": b"no newline\n"}


def test_a_line_longer_than_a_piece(talk: Talk) -> None:
    long = b"x" * (2 * PIECE_BYTES + 5) + b"\n"
    talk.says(LINE + long + LINE + b"cut")
    assert talk.kept() == {"main": LINE + long + LINE}
    sizes = list(pieces(talk.rig).values())
    assert sum(sizes) == 2 * len(LINE) + len(long)
    assert max(sizes) == PIECE_BYTES


def test_a_line_longer_than_what_is_taken_at_a_time(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored in parts, so that what comes after it is not waited for for ever."""
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    talk.says(b"y" * 2500 + b"\n" + LINE)
    found = [talk.keep() for _ in range(3)]
    lengths = [captured.marks[0].length for captured in found]
    assert lengths == [1000, 2000, 2501 + len(LINE)]
    assert found[-1].complete
    assert talk.stored(found[-1].marks) == {"main": b"y" * 2500 + b"\n" + LINE}


def test_much_at_once_comes_in_several_times(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10 * len(LINE) + 7)
    talk.says(25 * LINE)
    found = [talk.keep() for _ in range(3)]
    assert [captured.marks[0].length for captured in found] == [n * len(LINE) for n in (10, 20, 25)]
    assert [captured.complete for captured in found] == [False, False, True]
    assert f"{15 * len(LINE)} bytes were left" in found[0].missing[0]


def test_much_at_once_is_committed_in_between(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in memory has a bound; each of the commits is whole by itself."""
    monkeypatch.setattr(module, "_BATCH_BYTES", 1000)
    talk.add("sub", "sub.jsonl")
    talk.says(os.urandom(5000).hex().encode() + b"\n")
    talk.says(os.urandom(5000).hex().encode() + b"\n", "sub")
    commits = talk.rig.volume.writer.commits
    captured = talk.keep()
    assert talk.rig.volume.writer.commits >= commits + 2
    assert talk.rig.crash() == []  # the last of them may be lost, and was not
    talk.rig.start()
    assert {number for number, _ in pieces(talk.rig)} == {
        mark.transcript for mark in captured.marks
    }
    assert sessions(talk.rig)["s1"].files == (1, 2)


# -- another life -------------------------------------------------------------------------------


def test_another_life_goes_on_where_the_last_one_was(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.restart()
    talk.says(LINE)
    two = talk.checkpoint()
    assert pieces(talk.rig) == {(1, 0): len(LINE), (1, len(LINE)): len(LINE)}
    assert talk.conversation(one) == {"main": LINE}
    assert talk.conversation(two) == {"main": 2 * LINE}


def test_after_a_crash_it_goes_on_from_what_is_there(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.says(LINE)
    talk.keep()
    talk.rig.crash()
    talk.restart()
    talk.says(LINE)
    two = talk.checkpoint()
    assert pieces(talk.rig) == {(1, 0): len(LINE), (1, len(LINE)): 2 * len(LINE)}
    assert talk.conversation(one) == {"main": LINE}
    assert talk.conversation(two) == {"main": 3 * LINE}


def test_what_changed_in_the_middle_while_nobody_looked(talk: Talk) -> None:
    """Of the same length, with the same end."""
    talk.says(LINE + LINE.upper() + 20 * LINE)
    one = talk.checkpoint()
    talk.restart()
    data = LINE + LINE.lower() + 20 * LINE
    talk.path().write_bytes(data)
    two = talk.checkpoint()
    assert {number for number, _ in pieces(talk.rig)} == {1, 2}
    assert talk.conversation(one) == {"main": LINE + LINE.upper() + 20 * LINE}
    assert talk.conversation(two) == {"main": data}


def test_a_session_that_ended_and_goes_on_at_once(talk: Talk) -> None:
    """What is not committed yet is not stored twice."""
    talk.says(LINE)
    registry = talk.registry
    ended = SessionRecord("s1", "claude", state="ended", ended=1)
    with registry.lock:
        ended, _ = registry.capture(ended, talk.sources.values())
    assert registry.active() == []
    talk.says(LINE)
    assert talk.kept() == {"main": 2 * LINE}
    assert pieces(talk.rig) == {(1, 0): len(LINE), (1, len(LINE)): len(LINE)}


# -- files that are not what they were ------------------------------------------------------------


def cut_off(path: Path) -> bytes:
    os.truncate(path, len(LINE))
    return LINE


def made_shorter_and_longer_again(path: Path) -> bytes:
    data = LINE + LINE.swapcase() * 30
    path.write_bytes(data)
    return data


def replaced(path: Path) -> bytes:
    data = LINE.upper() * 40
    path.with_suffix(".new").write_bytes(data)
    os.replace(path.with_suffix(".new"), path)
    return data


def changed_in_the_middle(path: Path) -> bytes:
    with open(path, "r+b") as file:
        file.seek(len(LINE) + 4)
        file.write(b"?")
    return path.read_bytes()


def a_line_less(path: Path) -> bytes:
    data = path.read_bytes().replace(LINE.upper(), b"") + 5 * LINE
    path.write_bytes(data)
    return data


@pytest.mark.parametrize(
    "change",
    [cut_off, made_shorter_and_longer_again, replaced, changed_in_the_middle, a_line_less],
    ids=lambda fn: fn.__name__,
)
def test_a_file_that_is_another_one_is_another_transcript(
    talk: Talk, change: Callable[[Path], bytes]
) -> None:
    before = LINE + LINE.upper() + 20 * LINE
    talk.says(before)
    one = talk.checkpoint()
    after = change(talk.path())
    two = talk.checkpoint()
    talk.says(LINE)
    three = talk.checkpoint()
    assert {number for number, _ in pieces(talk.rig)} == {1, 2}
    assert talk.conversation(one) == {"main": before}
    assert talk.conversation(two) == {"main": after}
    assert talk.conversation(three) == {"main": after + LINE}
    assert sessions(talk.rig)["s1"].files == (2,)


@pytest.mark.parametrize("change", [cut_off, made_shorter_and_longer_again, replaced])
def test_a_long_file_that_is_another_one(
    talk: Talk, change: Callable[[Path], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is too long to be compared as a whole, the end tells."""
    monkeypatch.setattr(module, "_COMPARED", 100)
    talk.says(LINE + LINE.upper() + 20 * LINE)
    talk.keep()
    after = change(talk.path())
    assert talk.kept() == {"main": after}


def test_a_file_that_became_empty(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    os.truncate(talk.path(), 0)
    assert talk.keep().marks == ()
    assert sessions(talk.rig)["s1"].files == ()
    talk.says(LINE)
    assert talk.kept() == {"main": LINE}
    assert talk.conversation(one) == {"main": LINE}


def test_a_file_that_moved_goes_on(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    old = talk.path()
    new = talk.add("main", "moved.jsonl")
    os.rename(old, new)
    talk.says(LINE)
    talk.keep()
    assert list(pieces(talk.rig)) == [(1, 0), (1, len(LINE))]
    assert transcripts(talk.rig)[1].path == os.fsencode(new)


def test_a_file_that_moved_and_did_not_grow(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    old, new = talk.path(), talk.add("main", "moved.jsonl")
    os.rename(old, new)
    talk.keep()
    assert transcripts(talk.rig)[1].path == os.fsencode(new)


def test_a_file_that_vanished_stays_as_it_is_stored(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    talk.path().unlink()
    captured = talk.keep()
    assert talk.stored(captured.marks) == {"main": LINE}
    assert (captured.missing, captured.complete) == ((), True)
    talk.says(LINE + LINE)
    assert talk.kept() == {"main": 2 * LINE}
    assert list(pieces(talk.rig)) == [(1, 0), (1, len(LINE))]


def a_directory(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make", [a_directory, a_fifo, a_device, a_loop], ids=lambda fn: fn.__name__
)
def test_what_is_no_file_is_said_to_be_missing(talk: Talk, make: Callable[[Path], None]) -> None:
    talk.says(LINE)
    other = talk.add("sub", "sub.jsonl")
    talk.says(LINE.upper(), "sub")
    talk.keep()
    other.unlink()
    make(other)
    captured = talk.keep()
    (missing,) = captured.missing
    assert missing.startswith(f"{other}: ")
    assert not captured.complete
    assert talk.stored(captured.marks) == {"main": LINE, "sub": LINE.upper()}


def test_names_and_paths_of_any_bytes(talk: Talk) -> None:
    place = talk.add("main", b"s\xff\xfe.jsonl")
    talk.says(LINE)
    captured = talk.keep()
    assert transcripts(talk.rig)[1].path == os.fsencode(place)
    assert talk.stored(captured.marks) == {"main": LINE}
    place.unlink()
    place.mkdir()
    (missing,) = talk.keep().missing
    assert missing.encode().decode().endswith("s\\udcff\\udcfe.jsonl: it is no regular file")


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/name", "a\udcff", "", "a/./b"])
def test_a_name_that_could_lead_elsewhere_is_left_out(talk: Talk, name: str) -> None:
    talk.says(LINE)
    talk.add(name, "other")
    talk.says(LINE, name)
    captured = talk.keep()
    assert len(captured.missing) == 1
    assert talk.stored(captured.marks) == {"main": LINE}


def test_two_files_of_one_name(talk: Talk) -> None:
    """An adapter must not say so; the first one counts."""
    talk.says(LINE)
    other = talk.add("other", "other.jsonl")
    other.write_bytes(LINE.upper())
    main = talk.sources["main"]
    both = [main, Source("main", str(other), LINES)]
    found = [talk.keep(both) for _ in range(3)]
    assert [(len(one.missing), one.complete) for one in found] == [(1, False)] * 3
    assert talk.stored(found[-1].marks) == {"main": LINE}
    assert len(transcripts(talk.rig)) == 1


def test_a_path_that_is_none(talk: Talk) -> None:
    talk.sources["main"] = Source("main", "/a\0b", LINES)
    assert len(talk.keep().missing) == 1


# -- files that are replaced as a whole ---------------------------------------------------------


@pytest.fixture
def whole(talk: Talk) -> Talk:
    talk.add("main", "session.json", WHOLE)
    return talk


def test_each_version_is_a_transcript(whole: Talk) -> None:
    states = [b'{"messages": []}', b'{"messages": [1]}', b'{"massages": [1]}', b"{}"]
    made = []
    for state in states:
        whole.path().write_bytes(state)
        made.append(whole.checkpoint())
        assert whole.keep().marks == whole.keep().marks
    assert [whole.conversation(checkpoint) for checkpoint in made] == [{"main": s} for s in states]
    assert len(transcripts(whole.rig)) == len(states)


def test_one_that_is_the_same_is_not_stored_again(whole: Talk) -> None:
    whole.path().write_bytes(b"{}" * PIECE_BYTES)
    first = whole.keep()
    for _ in range(3):
        whole.path().write_bytes(b"{}" * PIECE_BYTES)
        assert whole.keep().marks == first.marks
    whole.restart()
    assert whole.keep().marks == first.marks
    assert pieces(whole.rig) == {(1, 0): PIECE_BYTES, (1, PIECE_BYTES): PIECE_BYTES}


def test_one_byte_in_the_middle_of_the_same_moment(whole: Talk) -> None:
    """Times of files are those of the last tick: that they are the same proves nothing at once."""
    whole.path().write_bytes(b"a" * 1000)
    times = os.stat(whole.path())
    whole.keep()
    with open(whole.path(), "r+b") as file:
        file.seek(500)
        file.write(b"b")
    os.utime(whole.path(), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert whole.kept() == {"main": b"a" * 500 + b"b" + b"a" * 499}


def test_one_that_looks_the_same_twice_is_not_read_again(
    whole: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.path().write_bytes(b"a" * 1000)
    first = whole.keep()
    outlive(whole.path().stat().st_ctime_ns)
    whole.keep()
    monkeypatch.setattr(module, "_hash", None)
    assert whole.keep().marks == first.marks


def test_one_that_looks_the_same_is_read_again_in_the_tick_of_its_change(
    whole: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the tick of the clock leaves the times as they are."""
    whole.path().write_bytes(b"a" * 1000)
    monkeypatch.setattr(module, "now", lambda: whole.path().stat().st_ctime_ns)
    compared, compare = [], module._hash

    def hashed(fd: int, length: int) -> bytes:
        compared.append(length)
        return compare(fd, length)

    monkeypatch.setattr(module, "_hash", hashed)
    for _ in range(3):
        whole.keep()
    assert compared == [1000, 1000], "each time but the first"


def test_one_that_changes_while_it_is_read(whole: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.path().write_bytes(b"one")
    first = whole.keep()
    whole.path().write_bytes(b"two!")
    read, written = os.pread, list[bytes]()

    def change(fd: int, size: int, offset: int) -> bytes:
        data = read(fd, size, offset)
        written.append(b"change number %d" % len(written))
        whole.path().write_bytes(written[-1])
        return data

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", change)
        captured = whole.keep()
    assert captured.marks == first.marks
    assert not captured.complete
    assert captured.missing[0].endswith("it changed while it was read")
    assert whole.kept() == {"main": written[-1]}


def test_one_that_is_too_large(whole: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.path().write_bytes(b"one")
    first = whole.keep()
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    whole.path().write_bytes(b"x" * 1001)
    captured = whole.keep()
    assert captured.marks == first.marks
    assert (len(captured.missing), captured.complete) == (1, False)


# -- who is at it -------------------------------------------------------------------------------


def test_several_sessions_and_files_at_once(talk: Talk, tmp_path: Path) -> None:
    """Threads as those of a daemon; what is stored is what was written, once."""
    names = [f"s{number}" for number in range(4)]
    talks = [Talk(talk.rig, tmp_path / name, name) for name in names]
    for one in talks:
        one.registry = talk.registry
        one.add("sub", "sub.jsonl")

    def chat(number: int) -> None:
        one = talks[number % len(talks)]
        for _ in range(20):
            one.says(LINE)
            one.says(LINE.upper(), "sub")
            one.keep()

    threads = [threading.Thread(target=chat, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pieces(talk.rig)
    for one in talks:
        assert one.kept() == {"main": 40 * LINE, "sub": 40 * LINE.upper()}
    assert len(transcripts(talk.rig)) == 8


def test_numbers_are_not_used_again(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    extra = talk.rig.volume.extra
    extra.put("piece", piece_key(7, 5), pack_piece(bytes(32), b"left behind"))
    talk.rig.volume.sync()
    talk.restart()
    talk.add("sub", "sub.jsonl")
    talk.says(LINE, "sub")
    assert {mark.transcript for mark in talk.keep().marks} == {1, 8}


# -- no room ------------------------------------------------------------------------------------


def test_a_store_without_room_takes_nothing_new(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.rig.volume.sync()
    talk.rig.volume.writer.set_quota(1)
    talk.says(LINE)
    captured = talk.keep()
    assert (captured.missing, captured.complete) == (("the store is full",), False)
    assert captured.marks == tuple(talk.keep().marks)
    talk.rig.volume.writer.set_quota(0)
    assert talk.kept() == {"main": 2 * LINE}
    assert talk.conversation(one) == {"main": LINE}
    assert list(pieces(talk.rig)) == [(1, 0), (1, len(LINE))]


def test_a_commit_that_fails_is_tried_again(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces stay in the queue; none is stored twice, or with a gap."""
    talk.says(LINE)
    talk.keep()
    writer = talk.rig.volume.writer
    commit = writer._commit

    def fail(groups: object) -> None:
        raise OSError(28, "No space left on device")

    talk.rig.volume.sync()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_commit", fail)
        patch.setattr(module, "_BATCH_BYTES", 10)
        talk.says(LINE)
        captured = talk.keep()
        assert not captured.complete
        talk.says(LINE)
        assert talk.keep().marks == captured.marks
        with pytest.raises(StoreFullError):
            talk.rig.volume.sync()
    assert writer._commit == commit
    talk.rig.volume.sync()
    assert talk.kept() == {"main": 3 * LINE}
    assert len(pieces(talk.rig)) == 3


def test_a_restore_that_was_withdrawn_takes_nothing_with_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction group is taken back when there is no room for it; pieces were in another."""
    talk.says(LINE)
    one = talk.checkpoint()
    talk.says(LINE)
    talk.keep()
    assert talk.rig.volume.extra.puts["piece"]
    writer = talk.rig.volume.writer
    commit = writer._commit

    def fail(groups: list[TransactionGroup]) -> None:
        if any("operation" in group.puts for group in groups):
            raise OSError(28, "No space left on device")
        commit(groups)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_commit", fail)
        with pytest.raises(StoreFullError):
            talk.rig.restore(one)
    talk.rig.checkpoint()
    talk.says(LINE)
    assert talk.kept() == {"main": 3 * LINE}
    assert len(pieces(talk.rig)) == 3


def test_times_of_a_clock_that_jumped(talk: Talk) -> None:
    talk.says(LINE)
    record = SessionRecord("s1", "claude", started=1 << 61, last=1, ended=5, state="ended")
    with talk.registry.lock:
        talk.registry.capture(record, talk.sources.values())
    assert sessions(talk.rig)["s1"].started == 1 << 61
    assert talk.kept() == {"main": LINE}
