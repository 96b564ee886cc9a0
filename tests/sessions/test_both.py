"""Going back with the files and in the conversation: both or neither, wherever it is killed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cowfs import agents
from cowfs.client.rpc import ConnectionFailedError
from cowfs.errors import (
    CowfsError,
    NoConversationError,
    NotCopyableConversationError,
    StoreFullError,
)
from cowfs.format.copying import COPYING, STATES, CopyingRecord, copying_key
from cowfs.format.records import CheckpointRecord, encode
from cowfs.format.sessions import ENDED
from cowfs.service.restore import Conversed, Restored, converse, restore
from cowfs.service.sessions import placing, reading
from cowfs.service.sessions.conversation import COPIED
from cowfs.service.sessions.placing import finish_all
from cowfs.store import steps
from cowfs.store import writer as writing
from cowfs.store.group import TransactionGroup
from cowfs.store.snapshot import Reader
from tests.conftest import MountFunction
from tests.crash.forks import Child, Report
from tests.sessions.scribe import NAME, SESSION, Scribe, Talk
from tests.support.mounting import Mounted, remove_mounts
from tests.support.volumes import AUTHOR, Rig

OLD, NEW = b"as it was", b"as it became"
SAID = b"you: begin\nscribe: done\n"
WHOLE, PATHS, ONLY = "everything", "some paths", "the conversation"
KINDS = (WHOLE, PATHS, ONLY)


@pytest.fixture(autouse=True)
def scribe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of these tests has an adapter."""
    known = agents.get
    monkeypatch.setattr(agents, "get", lambda name: Scribe() if name == NAME else known(name))


@dataclass
class Story:
    """A workspace with one checkpoint before a prompt, and what was done and said after it."""

    rig: Rig
    talk: Talk
    point: CheckpointRecord

    def back(self, what: str, expect: str = "") -> Restored | Conversed:
        if what == ONLY:
            return converse(self.rig.engine, AUTHOR, self.point.id, expect=expect)
        paths = [b"file"] if what == PATHS else None
        return restore(
            self.rig.engine, AUTHOR, self.point.id, paths=paths, conversation=True, expect=expect
        )

    def copies(self) -> dict[str, bytes]:
        """What is beside the original conversation."""
        return {n: data for n, data in self.talk.seen().items() if not n.startswith(SESSION)}

    def sessions(self) -> list[str]:
        """Those that are stored, but for the original."""
        with Reader(self.rig.volume.store) as reader:
            return [r.id for r in reading.sessions(reader) if r.id != SESSION]

    def on_its_way(self) -> bool:
        self.rig.volume.sync()
        with Reader(self.rig.volume.store) as reader:
            return next(reader.scan("meta", COPYING), None) is not None


@pytest.fixture
def story(volume: Rig, tmp_path: Path) -> Story:
    talk = Talk(tmp_path / "talk")
    volume.create(b"file", OLD)
    volume.create(b"other", OLD)
    for line in SAID.decode().splitlines():
        talk.say(line)
    talk.put_aside("long", b"a long result")
    point = talk.checkpoint(volume.engine, tmp_path, "make it better")
    talk.say("you: make it better")
    volume.save(b"file", NEW)
    volume.save(b"other", NEW)
    volume.volume.sync()
    return Story(volume, talk, point)


def check_both(story: Story, what: str) -> None:
    """It has happened."""
    rig = story.rig
    assert rig.read(b"file") == (NEW if what == ONLY else OLD)
    assert rig.read(b"other") == (OLD if what == WHOLE else NEW)
    [session] = story.sessions()
    assert story.copies() == {f"{session}.log": SAID, f"{session}/long": b"a long result"}
    for path in (story.talk.directory / f"{session}.log", story.talk.directory / session / "long"):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == 1
    assert not story.on_its_way()


def check_neither(story: Story) -> None:
    """Nothing has happened."""
    assert story.rig.read(b"file") == story.rig.read(b"other") == NEW
    assert story.copies() == {}
    assert not [p for p in story.talk.directory.iterdir() if not p.name.startswith(SESSION)]
    assert story.sessions() == []
    assert not story.on_its_way()


def check_original(story: Story) -> None:
    """What the agent has is never touched."""
    seen = story.talk.seen()
    assert seen[f"{SESSION}.log"] == SAID + b"you: make it better\n"
    assert seen[f"{SESSION}/long"] == b"a long result"


@pytest.mark.parametrize("what", KINDS)
def test_both(story: Story, what: str) -> None:
    before = story.talk.main.stat()
    told = story.back(what).conversation
    assert told is not None
    check_both(story, what)
    check_original(story)
    assert story.talk.main.stat().st_mtime_ns == before.st_mtime_ns
    [session] = story.sessions()
    assert told.session == session
    assert told.origin == SESSION
    assert told.command == ("scribe", "--resume", session)
    assert told.prompt == "make it better"
    assert {os.path.relpath(path, story.talk.directory) for path in told.files} == set(
        story.copies()
    )
    with Reader(story.rig.volume.store) as reader:
        record = reading.session(reader, session)
    assert record is not None
    assert (record.origin, record.agent, record.state) == (SESSION, NAME, ENDED)
    assert record.reason == COPIED
    assert record.transcript == os.fsencode(story.talk.directory / f"{session}.log")


def test_the_copy_goes_on_as_a_session_of_its_own(story: Story) -> None:
    """What is taken back once can be taken back again, from the copy."""
    first = story.back(WHOLE).conversation
    second = story.back(WHOLE).conversation
    assert first is not None
    assert second is not None
    assert first.session != second.session
    assert set(story.sessions()) == {first.session, second.session}


def test_an_undo_leaves_the_copy(story: Story) -> None:
    story.back(WHOLE)
    copies = story.copies()
    story.rig.undo()
    assert story.rig.read(b"file") == NEW
    assert story.copies() == copies
    story.rig.redo()
    assert story.rig.read(b"file") == OLD
    assert story.copies() == copies


# -- killed -------------------------------------------------------------------------------

_COPYING = [step for step in steps.STEPS if step.startswith("copy.")]
_COMMITS = ["group.frozen", "commit.begin", "commit.before-sync", "commit.after-sync"]
_RESTORING = [step for step in steps.STEPS if step.startswith("restore.")]
_PATHS = [step for step in steps.STEPS if step.startswith("restore-paths.")]
_KILLS = [
    *((ONLY, step, 1) for step in _COPYING),
    *((ONLY, step, passes) for step in _COMMITS for passes in (1, 2, 3)),
    *((WHOLE, step, 1) for step in (*_COPYING, *_RESTORING)),
    *((WHOLE, step, passes) for step in _COMMITS for passes in (1, 2, 3)),
    *((PATHS, step, 1) for step in (*_COPYING, *_PATHS)),
    *((PATHS, step, passes) for step in _COMMITS for passes in (1, 2, 3, 4)),
    *((WHOLE, "copy.linked", passes) for passes in (2,)),
]


@pytest.mark.parametrize(("what", "step", "passes"), _KILLS)
def test_killed_at_each_step(story: Story, what: str, step: str, passes: int) -> None:
    """Whoever opens the store next finds, and finishes, both or neither; a second time there is
    nothing left to do."""
    rig = story.rig
    rig.close()

    def live(report: Report) -> None:
        rig.start()
        steps.arm(step, passes)
        story.back(what)
        steps.arm("")
        rig.close()

    child = Child(live)
    assert list(child.reports()) == []
    assert child.wait(), f"{step} is not reached {passes} times"
    rig.start()
    finish_all(rig.volume)
    done = bool(story.sessions())
    if done:
        check_both(story, what)
    else:
        check_neither(story)
    check_original(story)
    assert done is ((step, passes) not in _before_the_commit(what))
    seen = story.talk.seen()
    rig.reopen()
    finish_all(rig.volume)
    assert story.talk.seen() == seen


def _before_the_commit(what: str) -> set[tuple[str, int]]:
    """Kills after which nothing may have happened. The groups: the note that a copy is prepared,
    (of paths: the rescue checkpoint,) the one that does both, the end of the note."""
    found = {(step, 1) for step in ("copy.begin", "copy.prepared", "copy.written")}
    found |= {(step, 1) for step in _COMMITS}
    deciding = 3 if what == PATHS else 2
    found |= {(step, number) for step in _COMMITS for number in range(1, deciding)}
    found |= {(step, deciding) for step in _COMMITS if step != "commit.after-sync"}
    found |= {("restore.begin", 1), ("restore.submitted", 1)}
    return found | {("restore-paths.rescued", 1), ("restore-paths.edited", 1)}


@pytest.mark.parametrize("step", ["copy.linked", "copy.named"])
def test_killed_again_while_it_is_finished(story: Story, step: str) -> None:
    rig = story.rig
    rig.close()

    def killed(work: Callable[[], Any]) -> None:
        def live(report: Report) -> None:
            rig.start()
            steps.arm(step)
            work()

        child = Child(live)
        assert list(child.reports()) == []
        assert child.wait()

    killed(lambda: story.back(WHOLE))
    killed(lambda: finish_all(rig.volume))
    rig.start()
    finish_all(rig.volume)
    check_both(story, WHOLE)


@pytest.mark.parametrize(("step", "done"), [("copy.written", False), ("restore.durable", True)])
def test_killed_under_a_mount(
    mount: MountFunction, base: Path, tmp_path: Path, step: str, done: bool
) -> None:
    """The daemon is killed; the next one finishes it before anybody sees the workspace."""
    log = tmp_path / "bot.log"
    log.write_text('{"role": "user", "content": "go"}\n{"role": "assistant", "content": "gone"}\n')
    (base / "file").write_bytes(OLD)
    before = tell_mount(mount(base), base, log)
    os.environ["COWFS_DIE_AT"] = f"{step}:1"
    try:
        dying = mount(base)
    finally:
        del os.environ["COWFS_DIE_AT"]
    with pytest.raises(ConnectionFailedError):
        dying.call("restore", checkpoint=before, conversation="both")
    dying.process.wait()
    remove_mounts(dying.mountpoint)
    mount(base)
    assert (base / "file").read_bytes() == (OLD if done else NEW)
    beside = {path.name for path in tmp_path.glob("*.log")} | {
        path.name for path in tmp_path.glob(".cowfs-*")
    }
    assert len(beside) == (2 if done else 1)
    assert all(name.endswith(".log") for name in beside)


def tell_mount(mounted: Mounted, base: Path, log: Path) -> str:
    """A prompt of a session, and a change after it; unmounted. The checkpoint before it."""
    with mounted.client() as client:
        event = {
            "agent": "bot",
            "session": SESSION,
            "event": "prompt",
            "prompt": "change it",
            "cwd": str(base),
            "transcript": str(log),
        }
        made = client.call("session.event", event)
    (base / "file").write_bytes(NEW)
    mounted.unmount()
    name: str = made["checkpoint"]["id"]
    return name


def test_what_root_makes_belongs_to_who_has_the_directory(story: Story) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(story.talk.directory, 12345, 23456)
    story.back(WHOLE)
    for path in story.copies():
        status = (story.talk.directory / path).stat()
        assert (status.st_uid, status.st_gid) == (12345, 23456)
    check_both(story, WHOLE)


# -- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "number"), [(WHOLE, 2), (PATHS, 3), (ONLY, 2)])
def test_a_commit_that_fails(
    story: Story, what: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when both shall be committed. A restore of everything is taken back; what is
    committed later, when there is room, is finished by whoever opens the store next."""
    rig = story.rig
    writer = rig.volume.writer
    real, commits = writer._commit, 0

    def commit(groups: list[TransactionGroup]) -> None:
        nonlocal commits
        commits += 1
        if commits >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(groups)

    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.002)
    monkeypatch.setattr(writer, "_commit", commit)
    with pytest.raises(StoreFullError):
        story.back(what)
    assert all(".cowfs-" in name for name in story.copies())
    monkeypatch.undo()
    monkeypatch.setattr(agents, "get", lambda name: Scribe())
    rig.volume.sync()
    rig.reopen()
    finish_all(rig.volume)
    if what == WHOLE:
        check_neither(story)
    else:
        check_both(story, what)


def test_a_checkpoint_without_a_conversation(story: Story) -> None:
    plain = story.rig.checkpoint("by hand")
    story.rig.save(b"file", b"later")
    with pytest.raises(NoConversationError) as caught:
        restore(story.rig.engine, AUTHOR, plain.id, conversation=True)
    assert story.point.id[:8] in caught.value.hint_text
    assert story.rig.read(b"file") == b"later"
    assert story.copies() == {}


def test_what_the_adapter_refuses(story: Story, tmp_path: Path) -> None:
    story.talk.say("unspeakable")
    point = story.talk.checkpoint(story.rig.engine, tmp_path, "again")
    story.rig.save(b"file", b"later")
    with pytest.raises(NotCopyableConversationError, match="unspeakable word"):
        restore(story.rig.engine, AUTHOR, point.id, conversation=True)
    assert story.rig.read(b"file") == b"later"
    assert story.copies() == {}


def test_before_anything_was_said(volume: Rig, tmp_path: Path) -> None:
    talk = Talk(tmp_path / "talk")
    talk.main.touch()
    point = talk.checkpoint(volume.engine, tmp_path, "hello")
    with pytest.raises(NotCopyableConversationError, match="nothing had been said"):
        converse(volume.engine, AUTHOR, point.id)


def test_a_place_that_cannot_be_written(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody made a file where a directory has to be: nothing is left of the copy."""

    def fail(path: bytes, mode: int = 0) -> None:
        raise FileExistsError(17, "File exists", path)

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(NotCopyableConversationError, match="File exists"):
        story.back(WHOLE)
    check_neither(story)


def test_a_place_in_the_workspace_itself(
    story: Story, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    """There the files would be restored away."""
    from cowfs.service.workspace import Description, write_description

    description = Description(str(story.talk.directory), "/nowhere")
    write_description(story.rig.store, description)
    with pytest.raises(NotCopyableConversationError, match="would lie in the workspace"):
        story.back(WHOLE)
    check_neither(story)


def test_a_name_that_is_taken_meanwhile(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is never replaced; `status` tells."""
    taken: list[Path] = []
    real = placing._give_names

    def give_names(record: Any, tell: Any) -> bool:
        for _, path in record.files:
            place = Path(os.fsdecode(path))
            if place.suffix == ".log":
                place.write_bytes(b"somebody else's")
                taken.append(place)
        return real(record, tell)

    monkeypatch.setattr(placing, "_give_names", give_names)
    story.back(WHOLE)
    assert [path.read_bytes() for path in taken] == [b"somebody else's"]
    assert story.rig.problems() == [("conversation", str(taken[0]))]
    assert not story.on_its_way()
    assert not list(story.talk.directory.glob(".cowfs-*"))


def test_a_file_system_without_links(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    story.back(WHOLE)
    check_both(story, WHOLE)


def test_a_directory_that_is_not_there_yet(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the home directory was not mounted: the next start tries again."""
    away = story.talk.directory.with_name("away")
    real = placing._give_names

    def give_names(record: Any, tell: Any) -> bool:
        story.talk.directory.rename(away)
        return real(record, tell)

    monkeypatch.setattr(placing, "_give_names", give_names)
    story.back(WHOLE)
    monkeypatch.setattr(placing, "_give_names", real)
    assert [kind for kind, _ in story.rig.problems()] == ["conversation"] * 2
    story.rig.reopen()
    finish_all(story.rig.volume)
    assert story.on_its_way()
    away.rename(story.talk.directory)
    finish_all(story.rig.volume)
    check_both(story, WHOLE)


@pytest.mark.parametrize("state", STATES)
def test_a_store_that_somebody_made(volume: Rig, tmp_path: Path, state: str) -> None:
    """It names files of the user's as temporary ones: they are left alone."""
    precious, empty = tmp_path / "precious", tmp_path / "empty"
    precious.write_bytes(b"kept")
    empty.mkdir()
    rows = (
        ((precious, tmp_path / "name"), ()),
        ((tmp_path / ".cowfs-0123abcd-0", tmp_path / "name"), (empty,)),
        ((tmp_path / ".cowfs-0123abcd-../../precious", tmp_path / "name"), ()),
    )
    volume.check = False  # `verify` tells of it
    for number, (pair, directories) in enumerate(rows):
        record = CopyingRecord(
            state,
            (tuple(map(os.fsencode, pair)),),  # type: ignore[arg-type]
            tuple(map(os.fsencode, directories)),
        )
        volume.volume.extra.put("meta", copying_key(f"s{number}"), encode(record))
    volume.reopen()
    finish_all(volume.volume)
    assert precious.read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "base") == [
        "empty",
        "precious",
    ]


def test_errors_of_names(story: Story) -> None:
    for name in ("nope", "@"):
        with pytest.raises(CowfsError):
            converse(story.rig.engine, AUTHOR, name)
    assert story.copies() == {}
