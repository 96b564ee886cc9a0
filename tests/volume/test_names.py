"""Names: every call's results and errnos, most of them compared with the kernel's own answers."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.volume import attributes, namespace
from cowfs.volume.namespace import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.support.native import Native, native_errno
from tests.support.volumes import DIRECTORY, FILE, Rig, errno_of

LONG = b"n" * 255
TOO_LONG = b"n" * 256
SUBJECTS = {
    "file": b"file",
    "another link of it": b"d/other",
    "symlink": b"symlink",
    "dangling": b"dangling",
    "fifo": b"fifo",
    "empty directory": b"empty",
    "full directory": b"full",
    "its child": b"full/sub",
    "in a full directory": b"full/sub/x",
    "new in a full directory": b"full/sub/y",
    "missing": b"missing",
    "in a directory": b"d/new",
    "longest name": b"d/" + LONG,
    "name too long": b"d/" + TOO_LONG,
    "below a file": b"file/x",
    "below a missing name": b"missing/x",
}


def populate(fs: Rig | Native) -> None:
    fs.create(b"file", b"content")
    fs.mkdir(b"d")
    fs.link(b"file", b"d/other")
    fs.symlink(b"file", b"symlink")
    fs.symlink(b"nowhere", b"dangling")
    fs.create(b"fifo", mode=stat.S_IFIFO | 0o600)
    fs.mkdir(b"empty")
    fs.mkdir(b"full")
    fs.mkdir(b"full/sub")
    fs.create(b"full/sub/x")


def names(rig: Rig) -> dict[bytes, tuple[int, int, int]]:
    """As `Native.names`."""
    seen: dict[int, int] = {}
    tree = rig.tree()
    return {
        path: (
            stat.S_IFMT(tree[path].mode),
            tree[path].nlink,
            seen.setdefault(tree[path].ino, len(seen)),
        )
        for path in sorted(tree)
        if path
    }


def walk_errno(rig: Rig, path: bytes) -> int:
    """What the kernel answers while it walks to the directory of a path, before any file system
    is asked; 0 when the directory is there."""
    directory = path.rpartition(b"/")[0]
    inode = rig.find(directory) if b"/" in path else rig.at(b"")
    if inode is None:
        return errno.ENOENT
    return 0 if inode.is_dir else errno.ENOTDIR


@pytest.fixture
def native(tmp_path: Path) -> Native:
    (tmp_path / "native").mkdir()
    fs = Native(tmp_path / "native")
    populate(fs)
    return fs


@pytest.fixture
def rig(volume: Rig) -> Rig:
    populate(volume)
    return volume


def same(rig: Rig, native: Native, call: str, *paths: bytes, **kwargs: int) -> None:
    """One call has the same result in both, and both trees are the same afterwards."""
    expected = native_errno(getattr(native, call), *paths, **kwargs)
    got = next((code for path in paths if (code := walk_errno(rig, path))), 0)
    got = got or errno_of(getattr(rig, call), *paths, **kwargs)
    assert errno.errorcode.get(got) == errno.errorcode.get(expected)
    assert names(rig) == native.names()
    rig.volume.sync()
    rig.evict()
    assert names(rig) == native.names()


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE, RENAME_EXCHANGE])
@pytest.mark.parametrize("source", SUBJECTS)
def test_rename_of_everything_to_everything(
    open_rig: Callable[[], Rig], tmp_path: Path, source: str, flags: int
) -> None:
    rig = open_rig()
    for number, target in enumerate(SUBJECTS):
        top, directory = b"%d" % number, tmp_path / str(number)
        directory.mkdir()
        native = Native(directory)
        populate(native)
        rig.mkdir(top)
        scope = _Below(rig, top)
        populate(scope)
        paths = SUBJECTS[source], SUBJECTS[target]
        expected = native_errno(native.rename, *paths, flags)
        walked = next((code for path in paths if (code := walk_errno(scope, path))), 0)
        got = walked or errno_of(scope.rename, *paths, flags)
        above = ("full directory", "its child")
        if source == "in a full directory" and target in above and not flags:
            # The kernel finds by itself that the target lies above, before it asks.
            expected = errno.EISDIR
        assert errno.errorcode.get(got) == errno.errorcode.get(expected), target
        assert names(scope) == native.names(), target
        rig.remove_tree(top)


class _Below(Rig):
    """A rig whose root is a directory of another one."""

    def __init__(self, rig: Rig, top: bytes) -> None:
        self.volume = rig.volume
        self._top = top
        self._rig = rig

    def find(self, path: bytes) -> object:  # type: ignore[override]
        return self._rig.find(self._top + b"/" + path if path else self._top)

    def tree(self) -> dict[bytes, object]:  # type: ignore[override]
        prefix = self._top + b"/"
        return {
            path[len(prefix) :]: facts
            for path, facts in self._rig.tree().items()
            if path.startswith(prefix)
        }


@pytest.mark.parametrize("call", ["unlink", "rmdir", "mkdir", "create"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_calls_on_one_name(rig: Rig, native: Native, subject: str, call: str) -> None:
    same(rig, native, call, SUBJECTS[subject])


@pytest.mark.parametrize("new", SUBJECTS)
@pytest.mark.parametrize("subject", ["file", "symlink", "fifo"])
def test_link(rig: Rig, native: Native, subject: str, new: str) -> None:
    same(rig, native, "link", SUBJECTS[subject], SUBJECTS[new])


def test_no_hard_links_of_directories(rig: Rig, native: Native) -> None:
    same(rig, native, "link", b"empty", b"new")


@pytest.mark.parametrize("flags", [3, 8])
def test_unknown_rename_flags(rig: Rig, native: Native, flags: int) -> None:
    same(rig, native, "rename", b"file", b"new", flags=flags)


def test_rename_whiteout_is_for_overlayfs_only(rig: Rig) -> None:
    assert errno_of(rig.rename, b"file", b"new", 4) == errno.EINVAL


def test_names_are_bytes(volume: Rig) -> None:
    odd = [b"\xff\xfe\x80", b"a\nb", b" ", b"...", b"\x01", "ü€😀".encode(), LONG, b"-rf"]
    for name in odd:
        volume.create(name, name)
    volume.reopen()
    assert volume.ls() == sorted(odd)
    assert all(volume.read(name) == name for name in odd)


def test_no_name_hides_one_that_starts_like_it(volume: Rig) -> None:
    wanted = [b"a", b"a\x01", b"a\xff", b"ab", b"a" * 254, b"a" * 255]
    for name in wanted:
        volume.create(name, name)
    volume.volume.sync()
    volume.unlink(b"a\x01")
    volume.reopen()
    assert volume.ls() == sorted(set(wanted) - {b"a\x01"})
    assert volume.read(b"a") == b"a"
    assert not volume.exists(b"a\x01")


def test_lookup(volume: Rig) -> None:
    volume.create(b"f")
    assert namespace.lookup(volume.view, 1, b"g") is None
    assert errno_of(namespace.lookup, volume.view, 1, TOO_LONG) == errno.ENAMETOOLONG
    assert errno_of(namespace.lookup, volume.view, volume.at(b"f").ino, b"x") == errno.ENOTDIR
    assert errno_of(namespace.lookup, volume.view, 999, b"x") == errno.ESTALE


def test_creation_of_every_type(volume: Rig) -> None:
    kinds = {
        b"file": FILE,
        b"directory": DIRECTORY,
        b"fifo": stat.S_IFIFO | 0o600,
        b"socket": stat.S_IFSOCK | 0o600,
        b"char": stat.S_IFCHR | 0o600,
        b"block": stat.S_IFBLK | 0o600,
    }
    for name, mode in kinds.items():
        volume.create(
            name, mode=mode, uid=5, gid=6, rdev=0x1234 if name in (b"char", b"block") else 0
        )
    volume.symlink(b"to/some\xffwhere", b"link")
    volume.reopen()
    for name, mode in kinds.items():
        facts = volume.facts(volume.at(name))
        assert (facts.mode, facts.uid, facts.gid, facts.size) == (mode, 5, 6, 0)
        assert facts.nlink == (2 if name == b"directory" else 1)
    assert volume.at(b"char").rdev == 0x1234
    link = volume.facts(volume.at(b"link"))
    assert (link.content, link.size, link.mode) == (b"to/some\xffwhere", 13, stat.S_IFLNK | 0o777)


def test_longest_symlink(volume: Rig) -> None:
    volume.symlink(b"t" * 4095, b"longest")
    assert errno_of(volume.symlink, b"t" * 4096, b"longer") == errno.ENAMETOOLONG
    volume.reopen()
    assert volume.at(b"longest").target == b"t" * 4095
    assert not volume.exists(b"longer")


def test_a_setgid_directory_passes_its_group_on(volume: Rig) -> None:
    volume.mkdir(b"d", 0o2775, gid=77)
    volume.create(b"d/file", gid=5)
    volume.create(b"d/program", mode=stat.S_IFREG | 0o755, gid=5)
    volume.mkdir(b"d/sub", 0o755, gid=5)
    volume.mkdir(b"d/sub/sub", 0o700, gid=5)
    volume.reopen()
    shown = {path: (facts.gid, facts.mode) for path, facts in volume.tree().items()}
    assert shown[b"d/file"] == (77, FILE)
    assert shown[b"d/program"] == (77, stat.S_IFREG | 0o755)
    assert shown[b"d/sub"] == (77, stat.S_IFDIR | 0o2755)
    assert shown[b"d/sub/sub"] == (77, stat.S_IFDIR | 0o2700)


def test_link_counts(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.mkdir(b"d/e")
    volume.create(b"f")
    volume.link(b"f", b"d/g")
    volume.link(b"f", b"d/e/h")
    counts = {path: facts.nlink for path, facts in volume.tree().items()}
    assert counts == {b"": 3, b"d": 3, b"d/e": 2, b"f": 3, b"d/g": 3, b"d/e/h": 3}
    assert volume.at(b"f").ino == volume.at(b"d/g").ino == volume.at(b"d/e/h").ino
    volume.rename(b"d/e", b"e")
    volume.unlink(b"f")
    volume.reopen()
    counts = {path: facts.nlink for path, facts in volume.tree().items()}
    assert counts == {b"": 4, b"d": 2, b"e": 2, b"d/g": 2, b"e/h": 2}


def test_moving_between_one_parent_and_another_keeps_the_way_up(volume: Rig) -> None:
    for path in (b"a", b"b", b"a/c", b"a/c/d"):
        volume.mkdir(path)
    volume.rename(b"a/c", b"b/c")
    assert volume.view.parent_of(volume.at(b"b/c")) == volume.at(b"b").ino
    assert errno_of(volume.rename, b"b", b"b/c/d/x") == errno.EINVAL
    volume.rename(b"a", b"b/c/d/a")
    assert errno_of(volume.rename, b"b/c", b"b/c/d/a/x", 0) == errno.EINVAL
    volume.rename(b"b/c", b"c")
    volume.reopen()
    assert errno_of(volume.rename, b"c", b"c/d/a/x") == errno.EINVAL
    assert volume.view.parent_of(volume.at(b"c")) == 1


def set_old(rig: Rig, *paths: bytes) -> None:
    """Give the paths times that no call gives."""
    for path in paths:
        attributes.set_attributes(rig.view, rig.at(path), atime=1, mtime=1, ctime=1)


def changed_times(rig: Rig, *paths: bytes) -> dict[bytes, str]:
    """Which of a(time), m(time), c(time) are not those of `set_old` any more."""
    out = {}
    for path in paths:
        inode = rig.at(path)
        letters = zip("amc", (inode.atime, inode.mtime, inode.ctime), strict=True)
        out[path] = "".join(letter for letter, time in letters if time != 1)
    return out


def test_calls_set_the_times_that_posix_names(volume: Rig) -> None:
    for path in (b"d", b"e", b"d/sub"):
        volume.mkdir(path)
    for path in (b"d/f", b"d/g", b"d/h", b"e/o"):
        volume.create(path)
    every = (b"d", b"e", b"d/f", b"e/o", b"d/sub", b"d/g")

    def after(call: Callable[[], object]) -> dict[bytes, str]:
        set_old(volume, *every)
        call()
        return {path: text for path, text in changed_times(volume, *every).items() if text}

    assert after(lambda: volume.create(b"d/new")) == {b"d": "mc"}
    assert after(lambda: volume.link(b"d/f", b"e/f")) == {b"e": "mc", b"d/f": "c"}
    assert after(lambda: volume.unlink(b"e/f")) == {b"e": "mc", b"d/f": "c"}
    assert after(lambda: volume.unlink(b"d/h")) == {b"d": "mc"}
    assert after(lambda: volume.rename(b"d/f", b"d/f", RENAME_EXCHANGE)) == {}
    assert after(lambda: volume.rename(b"d/f", b"e/o", RENAME_EXCHANGE)) == {
        b"d": "mc",
        b"e": "mc",
        b"d/f": "c",
        b"e/o": "c",
    }
    assert after(lambda: volume.mkdir(b"e/new")) == {b"e": "mc"}
    assert after(lambda: volume.rmdir(b"e/new")) == {b"e": "mc"}
    assert after(lambda: volume.chmod(b"d/f", 0o600)) == {b"d/f": "c"}
    assert after(lambda: volume.setxattr(b"d/f", b"user.a", b"1")) == {b"d/f": "c"}
    assert after(lambda: volume.truncate(b"d/f", 10)) == {b"d/f": "mc"}
    assert after(lambda: volume.tree()) == {}


def test_a_file_replaced_by_rename_lives_on_for_its_handle(volume: Rig) -> None:
    volume.create(b"old", b"old")
    volume.create(b"new", b"new")
    handle = volume.open(b"old")
    assert volume.rename(b"new", b"old") is handle.inode
    assert (handle.read(), handle.inode.nlink) == (b"old", 0)
    assert volume.read(b"old") == b"new"
    assert errno_of(namespace.link, volume.view, handle.inode.ino, 1, b"again") == errno.ENOENT
    handle.close()


def test_nothing_can_be_made_in_a_removed_directory(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"f")
    handle = volume.open(b"d")
    volume.rmdir(b"d")
    ino, view = handle.inode.ino, volume.view
    assert handle.inode.nlink == 0
    assert errno_of(namespace.create, view, ino, b"x", FILE, 0, 0) == errno.ENOENT
    assert errno_of(namespace.link, view, volume.at(b"f").ino, ino, b"x") == errno.ENOENT
    assert errno_of(namespace.rename, view, 1, b"f", ino, b"x") == errno.ENOENT
    assert errno_of(namespace.unlink, view, ino, b"x") == errno.ENOENT
    assert namespace.entries(view, ino) == []
    handle.close()
    assert volume.read(b"f") == b""


def test_a_directory_is_listed_in_a_stable_order(volume: Rig) -> None:
    for number in range(50):
        volume.create(b"%d" % number)
    before = namespace.entries(volume.view, 1)
    for number in range(0, 50, 2):
        volume.unlink(b"%d" % number)
    after = namespace.entries(volume.view, 1)
    assert after == [entry for entry in before if int(entry[0]) % 2]
