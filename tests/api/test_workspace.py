"""`cowfs.Workspace`, on a mount and without one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

import cowfs as package
from cowfs import CowfsError, Workspace
from cowfs.errors import (
    AlreadyMountedError,
    BadLabelError,
    BusyError,
    DaemonUnreachableError,
    LabelBesideError,
    LabelInUseError,
    NotAWorkspaceError,
    NothingToUndoError,
    NotMountedError,
    StateMovedError,
    UnknownCheckpointError,
    UnknownPathError,
    UsageError,
)
from tests.cli.command import Cowfs, kill


def top(workspace: Workspace, name: str) -> Path:
    """A new directory of the workspace for one test."""
    place = Path(workspace.path) / name
    place.mkdir()
    return place


# -- finding, mounting, unmounting ------------------------------------------------------------


def test_what_the_package_exports() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError):
        package.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.usefixtures("needs_fuse")
def test_mounted_used_unmounted(cowfs: Cowfs, project: Path) -> None:
    with pytest.raises(NotAWorkspaceError):
        Workspace.open(project)
    workspace = Workspace.mount(project, automatic=False)
    assert (workspace.base, workspace.path, workspace.mounted) == (str(project), str(project), True)
    status = workspace.status()
    assert (status.mounted, status.health, status.problems) == (True, "ok", ())
    assert status.pid == cowfs.pid(Path(workspace.store))
    assert Path(workspace.store).parent == cowfs.top / "data" / "cowfs" / "stores"
    assert cowfs.ok("status", cwd=project)["store"] == workspace.store
    with pytest.raises(AlreadyMountedError):
        Workspace.mount(project)

    (project / "new").write_text("made in the mount\n")
    (project / "readme").unlink()
    done = workspace.unmount()
    assert done.applied is not None
    assert (done.applied["created"], done.applied["deleted"], done.lost) == (1, 1, "")
    assert (project / "new").read_text() == "made in the mount\n"
    assert not (project / "readme").exists()
    assert not cowfs.mounts()
    assert not Path(f"/proc/{status.pid}").exists()  # not even as a zombie
    with pytest.raises(NotMountedError):
        workspace.unmount()


@pytest.mark.usefixtures("needs_fuse")
def test_mounted_elsewhere_with_a_store_of_ones_own(cowfs: Cowfs, project: Path) -> None:
    view, store = cowfs.top / "view", cowfs.top / "store"
    view.mkdir()
    workspace = Workspace.mount(project, at=view, store=store, automatic=False)
    assert (workspace.base, workspace.path) == (str(project), str(view))
    assert workspace.store == str(store)
    (view / "readme").write_text("other\n")
    for place in (view, view / "src", project):
        assert Workspace.open(place).store == str(store)
    assert workspace.unmount().applied is None
    assert (project / "readme").read_text() == "one\ntwo\n"
    assert workspace.show("readme", "@") == b"other\n"


def test_a_process_in_the_mount_keeps_it_busy(workspace: Workspace) -> None:
    with subprocess.Popen(["cat"], cwd=workspace.path, stdin=subprocess.PIPE) as process:
        try:
            with pytest.raises(BusyError, match="cat"):
                workspace.unmount(timeout=0)
            assert workspace.mounted
        finally:
            process.communicate()
    workspace.unmount()


def test_what_others_do_is_seen(cowfs: Cowfs, workspace: Workspace) -> None:
    made = cowfs.ok("checkpoint", "-m", "by the command", cwd=Path(workspace.path))["checkpoint"]
    assert workspace.get("@~1").id == made["id"]
    cowfs.ok("unmount", workspace.base)
    assert not workspace.status().mounted
    cowfs.ok("mount", workspace.base)
    assert workspace.status().mounted
    assert workspace.checkpoint("again").made


# -- checkpoints ------------------------------------------------------------------------------


def test_checkpoints(shared: Workspace) -> None:
    place = top(shared, "checkpoints")
    one = shared.checkpoint("one\nin two lines", label="first-one")
    assert (one.message, one.label, one.kind, one.made) == (
        "one\nin two lines",
        "first-one",
        "manual",
        True,
    )
    assert (one.uid, one.pid) == (os.getuid(), os.getpid())
    assert one.counts.created == 1
    again = shared.checkpoint("not used", if_changed=True)
    assert again == one
    assert not again.made
    (place / "file").touch()
    two = shared.checkpoint("two", if_changed=True)
    assert two.made
    assert two != one
    for name in (one, one.id, one.id[:8], "first-one", "@~2"):
        assert shared.get(name) == one
    assert shared.log(1) == (two,)
    assert shared.log(1)[0].parent == one.id
    assert shared.log(1, before=two) == (one,)
    assert shared.log(before="first-one")[-1].kind == "start"
    assert abs(one.moment.timestamp() - one.time / 1e9) < 0.001


def test_many_checkpoints_page_by_page(shared: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cowfs.api.workspace._FIRST_PAGE", 3)
    made = [shared.checkpoint(f"number {number}").id for number in range(12)]
    found = [row.id for row in shared.checkpoints()]
    assert found[:12] == made[::-1]
    assert found == [row.id for row in shared.log()]
    assert len(set(found)) == len(found)
    assert [len(page) for page in shared.pages()][:2] == [3, 6]
    rows = shared.log(12)
    assert all(newer.parent == older.id for newer, older in pairwise(rows))
    assert all(newer.epoch > older.epoch for newer, older in pairwise(rows))


# -- what changed -----------------------------------------------------------------------------


def test_diff_and_patch(shared: Workspace, tmp_path: Path) -> None:
    place = top(shared, "diff")
    (place / "edited").write_text("1\n2\n3\n")
    (place / "moved").write_text("same\n")
    (place / "gone").write_text("x\n")
    (place / "script").write_text("#!\n")
    (place / "script").chmod(0o644)
    before = shared.checkpoint("before")
    (place / "edited").write_text("1\n2\nthree\nfour\n")
    (place / "moved").rename(place / "there")
    (place / "gone").unlink()
    (place / "script").chmod(0o755)
    (place / "new").symlink_to("edited")
    after = shared.checkpoint("after")

    found = shared.diff(before, after, lines=True)
    assert (found.a, found.b) == (before.id, after.id)
    told = {(c.status, c.path, c.old_path, c.added, c.removed): c.attributes for c in found.changes}
    assert told == {
        ("M", "diff/edited", None, 2, 1): (),
        ("D", "diff/gone", None, 0, 1): (),
        ("A", "diff/new", None, 1, 0): (),
        ("P", "diff/script", None, 0, 0): ("mode",),
        ("R", "diff/there", "diff/moved", 0, 0): (),
    }
    by_path = {change.path: change for change in found.changes}
    script, new, gone = by_path["diff/script"], by_path["diff/new"], by_path["diff/gone"]
    assert script.old is not None
    assert script.new is not None
    assert (script.old.mode, script.new.mode) == (0o644, 0o755)
    assert new.old is None
    assert new.new is not None
    assert (new.new.type, new.new.target) == ("symlink", "edited")
    assert gone.new is None
    assert shared.diff(before, after, ["diff/edited", place / "gone"]).changes == tuple(
        change
        for change in shared.diff(before, after).changes
        if change.path in ("diff/edited", "diff/gone")
    )
    assert shared.diff(after, after).changes == ()

    patch = shared.patch(before, after, ["diff"])
    assert patch.complete
    old = tmp_path / "old" / "diff"
    old.mkdir(parents=True)
    for name in ("edited", "moved", "gone", "script"):
        (old / name).write_bytes(shared.show(f"diff/{name}", before))
    subprocess.run(["git", "apply"], cwd=old.parent, input=patch.data, check=True)
    assert (old / "edited").read_text() == "1\n2\nthree\nfour\n"
    assert (old / "there").read_text() == "same\n"
    assert not (old / "gone").exists()
    assert os.access(old / "script", os.X_OK)
    assert os.readlink(old / "new") == "edited"
    part = shared.patch(before, after, ["diff"], limit=10)
    assert (part.complete, part.data) == (False, patch.data[:10])


def test_show(shared: Workspace) -> None:
    place = top(shared, "show")
    data = os.urandom(200_000)
    (place / "data").write_bytes(data)
    (place / "link").symlink_to("data")
    (place / "empty").touch()
    kept = shared.checkpoint()
    (place / "data").write_bytes(b"other")
    assert shared.show("show/data", kept) == data
    assert shared.show(place / "data", kept.id) == data
    assert shared.show("show/data", "@") == b"other"
    assert shared.show("show/data", kept, limit=70_000) == data[:70_000]
    assert shared.show("show/empty", kept) == b""
    assert shared.show("show/link", kept) == b"data"
    with pytest.raises(UnknownPathError):
        shared.show("show/nothing", kept)
    with pytest.raises(CowfsError) as caught:
        shared.show("show", kept)
    assert caught.value.code == "COWFS_NOT_A_FILE"
    with pytest.raises(UsageError, match="outside"):
        shared.show("../elsewhere", kept)


def test_who_changed_what(shared: Workspace) -> None:
    place = top(shared, "who")
    start = shared.checkpoint("start")
    subprocess.run(["mkdir", place / "made"], check=True)
    (place / "own").write_text("x")
    middle = shared.checkpoint("middle")
    subprocess.run(["rmdir", place / "made"], check=True)
    told = [(row.process.name, row.operation) for row in shared.changes(["who"], since=start)]
    assert told[0] == ("mkdir", "made")
    assert told[-1] == ("rmdir", "removed")
    made = shared.changes(["who"], since=start, by="mkdir")
    assert [(row.operation, row.paths, row.directories) for row in made] == [
        ("made", (("who/made", None),), 1)
    ]
    assert made[0].process.command[0] == "mkdir"
    assert made[0].process.uid == os.getuid()
    mine = shared.changes([place / "own"], by=str(os.getpid()))
    # Making and writing are two if a transaction group ends in between.
    assert {row.paths for row in mine} == {(("who/own", None),)}
    assert [row.operation for row in shared.changes(["who"], since=middle)] == ["removed"]
    assert shared.changes(["who"], until=start, by="mkdir") == ()
    assert len(shared.changes(limit=1)) == 1
    assert shared.changes(limit=0) == ()
    assert shared.changes(["who"], outside=True) == ()  # there is no session


def test_names_that_are_not_utf8(shared: Workspace) -> None:
    place = top(shared, "bytes")
    name = os.fsencode(place) + b"/\xff\xfe"
    with open(name, "wb") as file:
        file.write(b"odd")
    kept = shared.checkpoint()
    text = os.fsdecode(b"bytes/\xff\xfe")
    assert text in [change.path for change in shared.diff("@~2", kept).changes]
    assert shared.show(text, kept) == b"odd"
    os.unlink(name)
    shared.restore(kept, [text])
    assert Path(os.fsdecode(name)).read_bytes() == b"odd"


# -- going back -------------------------------------------------------------------------------


def test_preview_and_restore(workspace: Workspace) -> None:
    place = Path(workspace.path)
    good = workspace.checkpoint("good", label="good")
    (place / "readme").write_text("bad\n")
    (place / "notes").write_text("mine\n")
    (place / "src" / "main.c").unlink()
    assert workspace.status().counts == package.Counts(1, 1, 1)

    would = workspace.preview("good", lines=True)
    assert would.checkpoint == good
    assert {(c.status, c.path, c.added, c.removed) for c in would.changes} == {
        ("M", "readme", 2, 1),
        ("D", "notes", 0, 1),
        ("A", "src/main.c", 1, 0),
    }
    assert (place / "readme").read_text() == "bad\n"
    some = workspace.preview(good, ["readme", "notes"], exclude=["no*"]).changes
    assert [change.path for change in some] == ["readme"]

    done = workspace.restore(good, exclude=["notes"])
    assert (done.operation, done.checkpoint) == ("restore", good)
    assert (done.rescue.kind, done.rescue.target) == ("rescue", good.id)
    assert (place / "readme").read_text() == "one\ntwo\n"
    assert (place / "src" / "main.c").exists()
    assert (place / "notes").read_text() == "mine\n"
    assert workspace.undo().operation == "undo"
    assert (place / "readme").read_text() == "bad\n"
    assert workspace.redo().operation == "redo"
    assert (place / "readme").read_text() == "one\ntwo\n"
    workspace.restore(done.rescue, [place / "readme"])
    assert (place / "readme").read_text() == "bad\n"
    assert (place / "src" / "main.c").exists()


def test_a_state_that_has_moved(workspace: Workspace) -> None:
    place = Path(workspace.path)
    good = workspace.checkpoint("good")
    (place / "readme").write_text("bad\n")
    planned = workspace.preview(good)
    (place / "src" / "main.c").write_text("somebody else's\n")
    with pytest.raises(StateMovedError) as caught:
        workspace.restore(good, expect=planned.state)
    assert "src/main.c" in caught.value.details["paths"]
    assert (place / "readme").read_text() == "bad\n"
    assert workspace.restore(good, ["readme"], expect=planned.state).changed > 0
    with pytest.raises(StateMovedError):
        workspace.restore(good, expect=good)
    workspace.restore(good, expect=workspace.preview(good).state)
    assert (place / "src" / "main.c").read_text() == "int main;\n"
    workspace.restore(good, expect=good)


def test_volatile_paths_are_left_alone(cowfs: Cowfs, workspace: Workspace) -> None:
    place = Path(workspace.path)
    cowfs.ok("config", "volatile.paths", "target", cwd=place)
    start = workspace.checkpoint()
    (place / "target").mkdir()
    (place / "target" / "built").touch()
    assert workspace.preview(start).changes == ()
    assert workspace.preview(start).left_alone == ("target",)
    assert workspace.restore(start).left_alone == ("target",)
    assert (place / "target" / "built").exists()
    assert workspace.preview(start, volatile=True).changes != ()
    assert workspace.restore(start, volatile=True).left_alone == ()
    assert not (place / "target").exists()


# -- errors -----------------------------------------------------------------------------------


def test_errors_are_those_of_the_command(cowfs: Cowfs, workspace: Workspace) -> None:
    place = Path(workspace.path)
    cowfs.cwd = place
    workspace.checkpoint(label="taken")
    with pytest.raises(LabelInUseError) as in_use:
        workspace.checkpoint(label="taken")
    told = cowfs.fails("checkpoint", "--label", "taken")
    assert in_use.value.to_json() == told
    with pytest.raises(LabelBesideError) as beside:
        workspace.checkpoint(label="taken/too")
    assert beside.value.to_json() == cowfs.fails("checkpoint", "--label", "taken/too")
    with pytest.raises(BadLabelError):
        workspace.checkpoint(label="-x")
    with pytest.raises(UnknownCheckpointError) as unknown:  # by the daemon
        workspace.restore("nope")
    assert unknown.value.to_json() == cowfs.fails("restore", "nope")
    with pytest.raises(UnknownCheckpointError) as unknown:  # by this process
        workspace.diff("nope")
    assert unknown.value.to_json() == cowfs.fails("show", "nope:readme")
    with pytest.raises(NothingToUndoError):
        workspace.undo()
    with pytest.raises(UsageError, match="a list"):
        workspace.diff(paths="readme")
    with pytest.raises(UsageError, match="cannot be a path"):
        workspace.show("\ud800", "@")
    with pytest.raises(UnknownPathError):
        workspace.show("a\0b", "@")
    with pytest.raises(UsageError, match="present state"):
        workspace.get("@")


def test_a_closed_one(workspace: Workspace) -> None:
    with workspace as same:
        assert same.checkpoint().made
    for call in (workspace.status, workspace.log, workspace.checkpoint, workspace.undo):
        with pytest.raises(UsageError, match="closed"):
            call()
    assert Workspace.open(workspace.base).mounted


# -- threads and descriptors ------------------------------------------------------------------


def test_from_several_threads(shared: Workspace) -> None:
    place = top(shared, "threads")

    def work(number: int) -> bytes:
        file = place / str(number)
        file.write_text(f"{number} one")
        kept = shared.checkpoint(f"thread {number}", label=f"thread-{number}")
        file.write_text(f"{number} two")
        paths = [f"threads/{number}"]
        other = Workspace.open(place)
        assert [change.status for change in other.diff(kept, "@", paths).changes] == ["M"]
        assert shared.get(f"thread-{number}") == kept
        assert other.status().mounted
        shared.restore(kept, paths)
        return other.show(paths[0], "@")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [f"{number} one".encode() for number in range(16)]


def test_with_many_open_descriptors(shared: Workspace) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"only {hard} descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:  # select(2) takes none above 1023
            taken.append(os.open(os.devnull, os.O_RDONLY))
        assert shared.checkpoint().made
        assert shared.status().mounted
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- without a mount --------------------------------------------------------------------------


def test_without_a_daemon(cowfs: Cowfs, workspace: Workspace) -> None:
    place = Path(workspace.path)
    start = workspace.checkpoint("start")
    (place / "readme").write_text("changed\n")
    workspace.unmount()
    again = Workspace.open(place / "src")
    assert not again.mounted
    status = again.status()
    assert (status.mounted, status.pid, status.health) == (False, None, "ok")
    assert again.get("@~2") == start
    assert [change.path for change in again.diff(start).changes] == ["readme"]
    assert again.show("readme", start) == b"one\ntwo\n"
    assert [row.paths for row in again.changes(["readme"])] == [(("readme", None),)]

    assert again.checkpoint("unmounted").made
    assert not again.checkpoint(if_changed=True).made
    assert again.restore(start).checkpoint == start
    assert again.show("readme", "@") == b"one\ntwo\n"
    assert again.undo().operation == "undo"
    assert again.show("readme", "@") == b"changed\n"
    assert again.log(1)[0].pid == os.getpid()
    assert cowfs.ok("verify", cwd=place)["problems"] == []


def test_a_dead_daemon(cowfs: Cowfs, workspace: Workspace) -> None:
    kept = workspace.checkpoint("kept")
    pid = workspace.status().pid
    assert pid is not None
    kill(pid, signal.SIGKILL)
    assert workspace.status().health == "dead"
    assert workspace.log(1) == (kept,)
    with pytest.raises(DaemonUnreachableError):
        workspace.checkpoint()
    again = Workspace.mount(workspace.base, automatic=False)
    assert again.status().health == "ok"
    assert workspace.checkpoint("and on").made

    (Path(workspace.path) / "new").write_text("kept\n")
    workspace.checkpoint()
    pid = workspace.status().pid
    assert pid is not None
    kill(pid, signal.SIGKILL)
    done = workspace.unmount()
    assert done.applied is not None
    assert done.applied["created"] == 1
    assert not cowfs.mounts()
    assert (Path(workspace.base) / "new").read_text() == "kept\n"


# -- sessions ---------------------------------------------------------------------------------


def test_sessions(cowfs: Cowfs, workspace: Workspace) -> None:
    from cowfs.api import opening

    assert workspace.sessions() == ()
    params = {"agent": "generic", "cwd": workspace.path}
    made = {}
    with opening.connect(opening.locate(workspace.path)) as daemon:  # type: ignore[union-attr]
        for session, event in (("one", "prompt"), ("two", "prompt"), ("two", "session-end")):
            pid = os.getpid() if session == "one" else 0
            said = {"session": session, "event": event, "prompt": f"do {session}", "pid": pid}
            answer = daemon.call("session.event", {**params, **said})
            made[session, event] = answer["checkpoint"]["id"]
    two, one = workspace.sessions()
    assert (one.id, one.agent, one.state, one.prompt) == ("one", "generic", "active", "do one")
    assert (two.id, two.state, two.pid) == ("two", "ended", 0)
    assert (one.checkpoints, one.last_checkpoint) == (1, made["one", "prompt"])
    checkpoint = workspace.get(made["one", "prompt"])
    assert (checkpoint.kind, checkpoint.session) == ("prompt", "one")
    context = workspace.context(checkpoint)
    assert context is not None
    assert (context.session, context.event, context.prompt) == ("one", "prompt", "do one")
    assert context.cwd == workspace.path
    assert workspace.context("@") is None

    # What this process does is the work of the session that it belongs to.
    (Path(workspace.path) / "of-one").touch()
    mine = workspace.changes(["of-one"], by="one")
    assert [(row.paths, row.process.session, row.outside) for row in mine] == [
        ((("of-one", None),), "one", False)
    ]
    assert workspace.changes(["of-one"], by="another") == ()
