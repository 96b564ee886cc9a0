"""Volatile paths: a restore leaves them alone, unless it is told otherwise or names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cowfs.service import config
from cowfs.service import restore as restoring
from cowfs.service.preview import preview
from cowfs.service.volatile import left_alone, matches
from cowfs.volume.history import Author
from tests.cli.command import Cowfs
from tests.history.states import history
from tests.support.volumes import Rig


@pytest.mark.parametrize(
    ("path", "pattern", "wanted"),
    [
        (b"target", b"target", True),
        (b"target/debug/x", b"target", True),
        (b"a/target/x", b"target", True),
        (b"targets", b"target", False),
        (b"a/b", b"a/b", True),
        (b"a/b/c", b"a/b", True),
        (b"x/a/b", b"a/b", False),
        (b"a/x.o", b"*.o", True),
        (b"\xff/x", b"\xff", True),
        (b"", b"target", False),
    ],
)
def test_what_is_volatile(path: bytes, pattern: bytes, wanted: bool) -> None:
    assert matches(path, [pattern]) is wanted


def test_what_is_named_is_not_left_alone(tmp_path: Path) -> None:
    config.change(tmp_path, "volatile.paths", ["target", "node_modules"])
    assert left_alone(tmp_path, []) == [b"target", b"node_modules"]
    assert left_alone(tmp_path, [b"src"]) == [b"target", b"node_modules"]
    assert left_alone(tmp_path, [b"target"]) == [b"node_modules"]
    assert left_alone(tmp_path, [b"a/node_modules/left-pad"]) == [b"target"]


@pytest.fixture
def rig(open_rig: Callable[[], Rig]) -> Rig:
    """Sources and what is made of them, with target and any node_modules volatile."""
    rig = open_rig()
    config.change(rig.engine.volume.store.path, "volatile.paths", ["target/", "node_modules/"])
    for directory in (b"target", b"src", b"src/node_modules", b"src/deep"):
        rig.mkdir(directory)
    for name in FILES:
        rig.create(name, b"old")
    return rig


FILES = [b"target/out", b"src/main", b"src/node_modules/pkg", b"src/deep/x", b"top"]


def change(rig: Rig) -> None:
    for name in FILES:
        rig.write(name, b"new")
    rig.create(b"target/more", b"new")
    rig.create(b"src/more", b"new")


def contents(rig: Rig) -> dict[bytes, bytes]:
    return {name: rig.read(name) for name in FILES}


OLD, NEW = dict.fromkeys(FILES, b"old"), dict.fromkeys(FILES, b"new")
VOLATILE = [b"target/out", b"src/node_modules/pkg"]


def test_a_restore_leaves_them_alone(rig: Rig) -> None:
    one = rig.checkpoint()
    change(rig)
    result = restoring.restore(rig.engine, Author(), one.id)
    assert result.left_alone == (b"target", b"node_modules")
    assert contents(rig) == OLD | dict.fromkeys(VOLATILE, b"new")
    assert rig.exists(b"target/more")
    assert not rig.exists(b"src/more")
    rig.undo()  # to the very state before
    assert contents(rig) == NEW
    assert rig.exists(b"src/more")


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        ([b"top"], ()),
        ([b"src/main"], ()),
        ([b"src/deep", b"src/main"], ()),
        ([b"src"], (b"node_modules",)),
        ([b"src", b"target"], (b"node_modules",)),
        ([b"target/out"], ()),
        ([], (b"target", b"node_modules")),
    ],
)
def test_what_is_left_alone_is_told(
    rig: Rig, paths: list[bytes], wanted: tuple[bytes, ...]
) -> None:
    """Only what is below the named paths; by what only says what would change, too."""
    one = rig.checkpoint()
    change(rig)
    rig.checkpoint()
    with history(rig) as workspace:
        seen = preview(workspace, rig.engine.volume.store.path, one.id, paths)
    assert tuple(map(os.fsencode, seen.left)) == wanted
    result = restoring.restore(rig.engine, Author(), one.id, paths=paths)
    assert result.left_alone == wanted


def test_what_does_not_differ_is_not_told(rig: Rig) -> None:
    one = rig.checkpoint()
    rig.write(b"top", b"new")
    rig.write(b"target/out", b"new")
    result = restoring.restore(rig.engine, Author(), one.id)
    assert result.left_alone == (b"target",)
    rig.write(b"src/main", b"new")
    rig.create(b"src/deep/fresh", b"new")
    assert restoring.restore(rig.engine, Author(), one.id).left_alone == (b"target",)
    assert rig.read(b"src/main") == b"old"


def test_unless_it_is_asked_for(rig: Rig) -> None:
    one = rig.checkpoint()
    change(rig)
    result = restoring.restore(rig.engine, Author(), one.id, volatile=True)
    assert result.left_alone == ()
    assert contents(rig) == OLD
    assert not rig.exists(b"target/more")


def test_or_they_are_named(rig: Rig) -> None:
    one = rig.checkpoint()
    change(rig)
    restoring.restore(rig.engine, Author(), one.id, paths=[b"src", b"target"])
    assert contents(rig) == OLD | {b"src/node_modules/pkg": b"new", b"top": b"new"}
    restoring.restore(rig.engine, Author(), one.id, paths=[b"src/node_modules/pkg"])
    assert rig.read(b"src/node_modules/pkg") == b"old"


def test_what_was_removed_stays_removed(rig: Rig) -> None:
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.remove_tree(b"src")
    restoring.restore(rig.engine, Author(), one.id)
    assert not rig.exists(b"target")
    assert not rig.exists(b"src/node_modules")
    assert rig.read(b"src/deep/x") == b"old"


def test_what_came_later_keeps_its_directory(rig: Rig) -> None:
    one = rig.checkpoint()
    rig.mkdir(b"fresh")
    rig.mkdir(b"fresh/target")
    rig.create(b"fresh/target/out", b"new")
    rig.create(b"fresh/source", b"new")
    restoring.restore(rig.engine, Author(), one.id)
    assert rig.read(b"fresh/target/out") == b"new"
    assert not rig.exists(b"fresh/source")


def test_without_any_the_whole_is_restored_at_once(rig: Rig) -> None:
    config.change(rig.engine.volume.store.path, "volatile.paths", None)
    one = rig.checkpoint()
    change(rig)
    assert restoring.restore(rig.engine, Author(), one.id).left_alone == ()
    assert contents(rig) == OLD


@pytest.mark.usefixtures("needs_fuse")
def test_on_the_command_line(cowfs_with_project: tuple[Cowfs, Path]) -> None:
    cowfs, project = cowfs_with_project
    (project / "target").mkdir()
    (project / "target" / "out").write_text("old")
    cowfs.ok("mount", project)
    cowfs.cwd = project
    cowfs.ok("config", "volatile.paths", "target/")
    one = cowfs.ok("checkpoint")["checkpoint"]["id"]
    (project / "target" / "out").write_text("new")
    (project / "readme").write_text("new")
    preview = cowfs.ok("restore", one, "--dry-run")
    assert [row["path"] for row in preview["changes"]] == ["readme"]
    assert preview["left_alone"] == ["target"]
    text = cowfs.says("restore", one)
    assert "volatile, left alone: target (restore --volatile has them, too)" in text
    assert (project / "readme").read_text() == "one\n"
    assert (project / "target" / "out").read_text() == "new"
    preview = cowfs.ok("restore", one, "--volatile", "--dry-run")
    assert [row["path"] for row in preview["changes"]] == ["target/out"]
    assert cowfs.ok("restore", one, "--volatile")["left_alone"] == []
    assert (project / "target" / "out").read_text() == "old"


@pytest.fixture
def cowfs_with_project(tmp_path: Path) -> Iterator[tuple[Cowfs, Path]]:
    """The command, and a directory with a file."""
    command = Cowfs(tmp_path)
    project = command.top / "project"
    project.mkdir()
    (project / "readme").write_text("one\n")
    try:
        yield command, project
        assert command.ok("verify")["problems"] == []
    finally:
        command.cwd = command.top
        command.clean_up()
