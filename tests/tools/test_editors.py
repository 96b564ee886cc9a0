"""How editors save, and what a checkpoint, a restore and the history make of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import changes, cowfs, need, run

Save = Callable[[Path, str], None]


def _write(path: Path, text: str, mode: int = 0o666) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def _backup_by_rename(path: Path, text: str) -> None:
    """The old file becomes the backup, a new one takes its name (vim's backupcopy=no)."""
    st = os.stat(path)
    backup = path.with_name(path.name + "~")
    os.rename(path, backup)
    _write(path, text, 0o600)
    os.chmod(path, st.st_mode)
    for name in os.listxattr(backup):
        os.setxattr(path, name, os.getxattr(backup, name))


def _backup_by_copy(path: Path, text: str) -> None:
    """The old content is copied, the file written in place (vim's backupcopy=yes)."""
    _write(path.with_name(path.name + "~"), path.read_text())
    _write(path, text)


def _emacs(path: Path, text: str) -> None:
    """A lock that is a dangling symbolic link, an auto-save file, a backup by rename."""
    lock = path.with_name(".#" + path.name)
    os.symlink("user@host.1234:1700000000", lock)
    auto = path.with_name(f"#{path.name}#")
    _write(auto, text)
    _backup_by_rename(path, text)
    auto.unlink()
    lock.unlink()


def _atomic(path: Path, text: str) -> None:
    """A temporary file that replaces the old one (what most other editors and tools do)."""
    st = os.stat(path)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.write(fd, text.encode())
        os.fchmod(fd, st.st_mode & 0o7777)
        for xattr in os.listxattr(path):
            os.setxattr(fd, xattr, os.getxattr(path, xattr))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(name, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _in_place(path: Path, text: str) -> None:
    with open(path, "r+") as file:
        file.write(text)
        file.truncate()


SAVES = [_backup_by_rename, _backup_by_copy, _emacs, _atomic, _in_place]
KEEPS_INODE = {_backup_by_copy, _in_place}


@pytest.fixture
def document(top: Path) -> Path:
    """A file with a mode and an attribute of its own."""
    path = top / "project" / "document"
    path.parent.mkdir()
    path.write_text("one\ntwo\n")
    path.chmod(0o750)
    os.setxattr(path, "user.note", b"kept")
    return path


@pytest.mark.parametrize("save", SAVES, ids=[save.__name__ for save in SAVES])
def test_saves(workspace: Mounted, document: Path, save: Save) -> None:
    before = os.stat(document)
    first = workspace.checkpoint()
    save(document, "three\n")
    assert document.read_text() == "three\n"
    assert document.stat().st_mode == before.st_mode
    assert os.getxattr(document, "user.note") == b"kept"
    assert (document.stat().st_ino == before.st_ino) == (save in KEEPS_INODE)
    backup = document.with_name("document~")
    expected = 1 if backup.exists() else 0
    # The document is modified, however it was saved; what the save needed meanwhile left nothing.
    created, modified, deleted = changes(workspace)
    assert (created, deleted) == (expected, 0)
    assert modified in (1, 2)  # the directory's own time may count
    differing = {change["path"] for change in cowfs(workspace, "diff", first, "@")["changes"]}
    differing.discard("project")
    assert differing == {"project/document", "project/document~"} & {
        f"project/{name}" for name in os.listdir(document.parent)
    }
    if backup.exists():
        assert backup.read_text() == "one\ntwo\n"

    second = workspace.checkpoint()
    save(document, "four\n")
    workspace.restore(first)
    assert document.read_text() == "one\ntwo\n"
    assert document.stat().st_ino == before.st_ino
    assert document.stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(document.parent) == ["document"]
    # Saved anew after the restore, and then the other state.
    save(document, "five\n")
    assert document.read_text() == "five\n"
    workspace.restore(second)
    assert document.read_text() == "three\n"
    assert os.getxattr(document, "user.note") == b"kept"


@pytest.mark.parametrize("backup", ["nobackup", "backup"])
@pytest.mark.parametrize("copy", ["yes", "no", "auto,breakhardlink"])
def test_vim(
    workspace: Mounted, document: Path, env: dict[str, str], copy: str, backup: str
) -> None:
    vim = need("vim")
    linked = document.with_name("linked")
    os.link(document, linked)
    first = workspace.checkpoint()

    def edit(change: str) -> None:
        settings = f"set {backup} writebackup backupcopy={copy} backupskip= fsync swapfile"
        words = [vim, "-es", "-N", "-u", "NONE", "-i", "NONE", "-c", settings]
        run([*words, "-c", change, "-c", "wq", document], document.parent, env)

    edit("%s/two/three/")
    assert document.read_text() == "one\nthree\n"
    assert document.stat().st_mode & 0o7777 == 0o750
    # Only a copy leaves the other name on the same file.
    together = copy == "yes"
    assert linked.read_text() == ("one\nthree\n" if together else "one\ntwo\n")
    assert os.path.samefile(document, linked) == together
    names = {"document", "linked"} | ({"document~"} if backup == "backup" else set())
    assert set(os.listdir(document.parent)) == names
    if backup == "backup":
        assert document.with_name("document~").read_text() == "one\ntwo\n"
    second = workspace.checkpoint()
    edit("%s/one/zero/")
    workspace.restore(first)
    assert document.read_text() == "one\ntwo\n"
    assert os.path.samefile(document, linked)
    assert document.stat().st_nlink == 2
    edit("$d")
    assert document.read_text() == "one\n"
    workspace.restore(second)
    assert document.read_text() == "one\nthree\n"
    assert set(os.listdir(document.parent)) == names
