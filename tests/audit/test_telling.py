"""Operations as stories: what belongs together, how it is said, and that only the end is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cowfs.format import audit
from cowfs.format.audit import AuditRecord, Operation, ProcessRecord
from cowfs.service.audit import telling
from cowfs.service.audit.log import Log, Process
from cowfs.service.audit.spans import Span
from cowfs.service.audit.stories import Story, name_of
from cowfs.service.audit.telling import Paths, newest
from cowfs.store.snapshot import Reader
from tests.audit.acting import Actor
from tests.support.volumes import Rig


@pytest.fixture
def actor(volume: Rig) -> Actor:
    return Actor(volume)


def stories(rig: Rig, limit: int = 0, *, whole: bool = False) -> list[Story]:
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        return newest(Log(reader), Paths(reader), limit, whole=whole)


def test_times_within_one_epoch(volume: Rig, actor: Actor) -> None:
    """Each bound is within, and a record that lies only partly within is told in part."""
    actor.create(b"one", b"1")
    actor.mkdir(b"d")
    actor.unlink(b"one")
    actor.create(b"two", b"2")
    volume.volume.sync()
    with Reader(volume.volume.store) as reader:

        def told(span: Span) -> list[tuple[str, bytes]]:
            found = newest(Log(reader), Paths(reader), 0, span=span, whole=True)
            return [(story.what(), story.paths[0][0]) for story in found]

        deeds = sorted(
            deed.time
            for record in Log(reader).backwards()
            for deed in telling.deeds_of(record, Paths(reader))
        )
        first, last = deeds[0], deeds[-1]
        whole = told(Span())
        assert told(Span(first=first, last=last)) == whole
        assert told(Span(first=last + 1)) == told(Span(last=first - 1)) == []
        assert told(Span(first=last)) == [("made two", b"two")]


def said(rig: Rig) -> list[str]:
    return [story.what() for story in stories(rig)]


def test_what_an_editor_does_to_save(volume: Rig, actor: Actor) -> None:
    volume.create(b"f", b"old")
    volume.volume.sync()
    actor.create(b".f.swp", b"new")
    actor.rename(b".f.swp", b"f")
    assert said(volume) == ["changed f"]


def test_a_new_file_by_way_of_another_name(volume: Rig, actor: Actor) -> None:
    actor.create(b"temp", b"new")
    actor.rename(b"temp", b"f")
    assert said(volume) == ["made f"]


def test_a_save_that_is_synced_before_the_rename(volume: Rig, actor: Actor) -> None:
    """fsync(2) ends a transaction group: the two halves are in two records."""
    volume.create(b"f", b"old")
    volume.volume.sync()
    volume.create(b"g", b"old")
    actor.mkdir(b"d")
    for name in (b"f", b"g"):
        actor.create(name + b".tmp", b"new")
        volume.volume.sync()
        actor.rename(name + b".tmp", name)
        volume.volume.sync()
    assert said(volume) == ["made d", "changed f and g"]


def test_a_rename_after_a_checkpoint_is_one(volume: Rig, actor: Actor) -> None:
    actor.create(b"one")
    volume.checkpoint()
    actor.rename(b"one", b"two")
    assert said(volume) == ["made one", "renamed one to two"]


def test_temporary_files(volume: Rig, actor: Actor) -> None:
    actor.create(b"lock")
    actor.create(b"f")
    actor.unlink(b"lock")
    assert sorted(said(volume)) == ["made and removed again lock", "made f"]


def test_a_burst_over_several_groups_is_one(volume: Rig, actor: Actor) -> None:
    actor.mkdir(b"d")
    volume.volume.sync()
    for number in range(4):
        actor.create(b"d/%d" % number)
        volume.volume.sync()
    assert said(volume) == ["made 4 files and 1 directory below d/"]
    assert [len(stories(volume, limit)) for limit in (1, 2)] == [1, 1]


def test_one_file_written_again_and_again_is_one_file(volume: Rig, actor: Actor) -> None:
    volume.create(b"log")
    volume.volume.sync()
    for at in range(5):
        actor.open(b"log")
        actor.write(b"log", b"x", at)
        actor.close(b"log")
        volume.volume.sync()
    (story,) = stories(volume)
    assert (story.what(), story.files, story.size) == ("changed log", 1, 5)


def test_a_checkpoint_ends_a_story(volume: Rig, actor: Actor) -> None:
    actor.create(b"a")
    volume.checkpoint()
    actor.create(b"b")
    assert said(volume) == ["made a", "made b"]


def test_a_pause_ends_a_story(volume: Rig, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    actor.create(b"a")
    volume.volume.sync()
    monkeypatch.setattr(telling, "_PAUSE_NS", 0)
    actor.create(b"b")
    assert said(volume) == ["made a", "made b"]


@pytest.mark.parametrize("many", [1, 99, 1200])
def test_many_are_counted(volume: Rig, actor: Actor, many: int) -> None:
    volume.mkdir(b"d")
    for number in range(many):
        volume.create(b"d/%d" % number)
    volume.volume.sync()
    actor.remove_tree(b"d")
    (story,) = stories(volume)
    assert (story.files, story.directories, story.below) == (many, 1, b"d")
    (whole,) = stories(volume, whole=True)
    assert (whole.files, whole.directories) == (many, 1)
    assert len({path for path, _ in whole.paths}) == many + 1
    assert whole.what() == story.what()


def test_few_are_named(volume: Rig, actor: Actor) -> None:
    for name in (b"a", b"b", b"c"):
        actor.create(name)
    assert said(volume) == ["made a, b and c"]
    actor.create(b"d")
    assert said(volume) == ["made 4 files"]


def test_only_as_much_is_read_as_is_needed(
    volume: Rig, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        actor.create(b"%d" % number)
        volume.checkpoint()
    monkeypatch.setattr(telling, "_PAUSE_NS", 0)
    seen = []
    original = telling.tell

    def tell(log: Log, record: AuditRecord, *more: Any, **options: Any) -> list[Story]:
        seen.append(record)
        return original(log, record, *more, **options)

    monkeypatch.setattr(telling, "tell", tell)
    assert [story.what() for story in stories(volume, 3)] == ["made 27", "made 28", "made 29"]
    assert len(seen) == 4


def process(*words: str, name: str = "", parent: str = "") -> Process:
    line = b"".join(word.encode() + b"\0" for word in words)
    above = (ProcessRecord(1, 0, 0, "ana", parent, b""),) if parent else ()
    name = name or words[0].rpartition("/")[2]
    return Process(5, ProcessRecord(7, 0, 0, "ana", name, line), above)


CLAUDE = "source /home/ana/.claude/shell-snapshots/snapshot-bash-1.sh 2>/dev/null || true"


@pytest.mark.parametrize(
    ("who", "wanted"),
    [
        (process("rm", "-rf", "build", parent="bash"), "bash `rm -rf build`"),
        (process("/usr/bin/rm", "x", parent="zsh"), "zsh `rm x`"),
        (process("-bash", name="bash", parent="sshd"), "bash"),
        (process("bash", parent="claude"), "bash"),
        (process("vi"), "vi"),
        (process("sh", "-c", "a | b", parent="make"), "make `sh -c 'a | b'`"),
        (process("sh", "-c", "a\n  b", parent="make"), "make `sh -c 'a b'`"),
        (process("bash", "-c", f"{CLAUDE} && eval 'make' < /dev/null && pwd"), "`make`"),
        (
            process("zsh", "-c", "-l", f"{CLAUDE} && eval 'echo '\"'\"'a'\"'\"'' < /dev/null"),
            "`echo 'a'`",
        ),
        (process("bash", "-c", f"{CLAUDE} && eval 'touch a; to"), "`touch a; to`"),
        (process("/usr/bin/python3.11", "/x/bin/pip", "install"), "`pip install`"),
        (Process(audit.UNKNOWN, ProcessRecord(0, 0, 0, "", "", b"")), "an unknown process"),
        (Process(audit.OUTSIDE, ProcessRecord(0, 0, 0, "", "", b"")), "somebody outside"),
        (Process(9, ProcessRecord(0, 0, 0, "", "", b"")), "an unknown process"),
    ],
)
def test_what_a_process_is_called(who: Process, wanted: str) -> None:
    assert name_of(who) == wanted


def test_a_long_command_is_cut() -> None:
    assert len(name_of(process("echo", "x" * 500))) < 80


def test_by_whom() -> None:
    who = process("/usr/bin/npm", "install", name="node", parent="claude")
    assert all(who.is_of(name) for name in ("npm", "node", "claude", "ana", "7", "1"))
    assert not any(who.is_of(name) for name in ("", "0", "install", "bash"))


def test_a_store_without_these_tables() -> None:
    """One that no newer program has opened for writing."""

    reader = SimpleNamespace(store=SimpleNamespace(tables={}))
    log = Log(reader)  # type: ignore[arg-type]
    assert log.last == 0
    assert [*log.backwards(), *log.since(0), *log.of_epoch(1)] == []
    assert name_of(log.process(7)) == "an unknown process"


def test_unknown_codes_of_a_later_program() -> None:
    record = AuditRecord(1, 0, 0, (b"",), (Operation(99, 0, 5, 8, 0, b"x"),))
    (deed,) = telling.deeds_of(record, Paths(None))  # type: ignore[arg-type]
    assert deed.verb == "?"
