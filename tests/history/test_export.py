"""Export: the written tree is the state, as an independent listing sees it."""

from __future__ import annotations

import io
import os
import resource
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cowfs.errors import (
    DestinationExistsError,
    ExportFailedError,
    NotADirectoryPathError,
    PermissionDeniedError,
)
from cowfs.format import keys
from cowfs.service.export import Exported, export_tree
from cowfs.service.exporting import directory as directory_export
from cowfs.volume import attributes, namespace
from tests.history.states import history
from tests.support.listing import difference, listing, portable
from tests.support.volumes import Rig

OpenRig = Callable[[], Rig]
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")


def fill(base: Path) -> None:
    """One of everything."""
    (base / "d/sub").mkdir(parents=True)
    (base / "d/sub/deep").write_text("deep\n" * 30000)
    (base / "d/one").write_text("one\n")
    os.setxattr(base / "d/one", b"user.note", b"\0\xff=%\n")
    os.setxattr(base / "d", b"user.dir", b"x")
    (base / "empty").touch()
    (base / "program").write_text("#!/bin/sh\n")
    (base / "program").chmod(0o4755)
    (base / "secret").write_text("s\n")
    (base / "secret").chmod(0 if ROOT else 0o400)  # of its owner only root can read the other
    (base / "link").symlink_to("d/one")
    (base / "dangling").symlink_to("/nowhere/at all")
    os.link(base / "d/one", base / "d/sub/again")
    os.link(base / "d/one", base / "third")
    os.mkfifo(base / "pipe", 0o640)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(base / "socket"))
    server.close()
    odd = base / os.fsdecode(b"caf\xe9 \n\"'\\")
    odd.mkdir()
    (odd / os.fsdecode(b"\xff" * 255)).write_bytes(bytes(range(256)) * 600)
    with open(base / "sparse", "wb") as file:
        file.seek(100 << 20)
        file.write(b"end")
    os.symlink(b"\xfe\xff", os.fsencode(base / "bad target"))
    if ROOT:
        os.mknod(base / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chown(base / "d/one", 1234, 4321)
        os.chown(base / "link", 7, 7, follow_symlinks=False)
        os.chown(base / "d/sub", 99, 98)
    (base / "d/sub").chmod(0o2710)
    for number, path in enumerate(sorted(base.rglob("*"))):
        moment = (1_000_000_000 + number) * 10**9 + 123_456_789
        os.utime(path, ns=(moment + 5, moment), follow_symlinks=False)
    (base / "d/sub").chmod(0o2710)
    os.utime(base / "empty", ns=(1, -1_500_000_001))
    os.utime(base, ns=(5_000_000_007, 3_000_000_009))


def times(top: Path) -> dict[bytes, tuple[int, int]]:
    """mtime, and atime of what keeps it while it is looked at."""
    out = {}
    for path in [b".", *_paths(top)]:
        st = os.lstat(os.fsencode(top) + b"/" + path)
        quiet = not stat.S_ISLNK(st.st_mode) and not stat.S_ISDIR(st.st_mode)
        out[path] = (st.st_mtime_ns, st.st_atime_ns if quiet else 0)
    return out


def _paths(top: Path) -> list[bytes]:
    root = os.fsencode(top)
    return [
        os.path.relpath(os.path.join(directory, name), root)
        for directory, below, files in os.walk(root)
        for name in below + files
    ]


def links_of(top: Path) -> list[list[bytes]]:
    """Groups of paths that are one file."""
    groups: dict[int, list[bytes]] = {}
    for path in _paths(top):
        st = os.lstat(os.fsencode(top) + b"/" + path)
        if not stat.S_ISDIR(st.st_mode):
            groups.setdefault(st.st_ino, []).append(path)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """syncfs(2) waits for everybody's data; here it is only noted."""
    synced: list[int] = []
    monkeypatch.setattr(directory_export, "_sync", synced.append)
    return synced


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    fill(base)
    return open_rig()


def export(rig: Rig, dest: Path, selector: str = "@") -> Exported:
    with history(rig) as workspace:
        return export_tree(workspace, workspace.point(selector), dest)


@pytest.mark.parametrize("looked", [False, True])
def test_directory_is_the_state(rig: Rig, base: Path, tmp_path: Path, looked: bool) -> None:
    before = times(base)
    if looked:
        assert {b"", b"d/sub/deep", b"pipe"} < rig.tree().keys()
    dest = tmp_path / "out"
    with history(rig) as workspace:
        result = export_tree(workspace, workspace.point("@"), dest)
    assert times(dest) == before
    assert difference(portable(listing(base)), portable(listing(dest))) == []
    assert links_of(dest) == links_of(base) == [[b"d/one", b"d/sub/again", b"third"]]
    assert result.problems == []
    assert (result.directories, result.links, result.symlinks) == (4, 2, 3)
    assert result.specials == 2 + ROOT
    assert result.entries == len(_paths(dest)) + 1
    assert os.stat(dest / "sparse").st_blocks * 512 <= 65536
    assert result.bytes_written == 100 * 2**20 + 3 + 150000 + 4 + 10 + 2 + 256 * 600
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_state_of_the_past_with_changes(rig: Rig, base: Path, tmp_path: Path) -> None:
    before = portable(listing(base))
    moments = times(base)
    a = rig.checkpoint()
    rig.remove_tree(b"d")
    rig.create(b"d", b"a file\n")
    rig.write(b"sparse", b"hole no more", 50 << 20)
    rig.truncate(b"sparse", 60 << 20)
    rig.chmod(b"program", 0o600)
    rig.setxattr(b"empty", b"user.x", b"y")
    rig.link(b"program", b"program2")
    attributes.set_attributes(rig.view, rig.at(b"empty"), atime=11, mtime=12)
    export(rig, tmp_path / "then", a.id)
    export(rig, tmp_path / "now")
    assert times(tmp_path / "then") == moments
    assert difference(before, portable(listing(tmp_path / "then"))) == []
    st = os.stat(tmp_path / "now/empty")
    assert (st.st_atime_ns, st.st_mtime_ns) == (11, 12)
    now = listing(tmp_path / "now")
    assert {p for p in now if p.startswith("d")} == {"d", "dangling"}
    assert now["d"].kind == "file"
    assert now["sparse"].size == 60 << 20
    with open(tmp_path / "now/sparse", "rb") as file:
        file.seek(50 << 20)
        assert file.read(13) == b"hole no more\0"
    assert os.stat(tmp_path / "now/sparse").st_blocks * 512 <= 2 * 65536
    assert (now["program"].mode, now["program"].ino) == (0o600, now["program2"].ino)
    assert now["empty"].xattrs == (("user.x", b"y"),)


def test_links_out_of_the_tree_are_never_followed(
    open_rig: OpenRig, base: Path, tmp_path: Path
) -> None:
    """Case 8: a link to a directory outside was replaced by a directory, and the other way."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p\n")
    (base / "out").symlink_to(outside)
    (base / "real").mkdir()
    (base / "real/file").write_text("r\n")
    rig = open_rig()
    a = rig.checkpoint()
    rig.unlink(b"out")
    rig.mkdir(b"out")
    rig.create(b"out/file", b"inside\n")
    rig.create(b"out/precious", b"ours\n")
    rig.remove_tree(b"real")
    rig.symlink(os.fsencode(outside), b"real")
    for number, selector in enumerate((a.id, "@")):
        export(rig, tmp_path / f"to{number}", selector)
    assert os.readlink(tmp_path / "to0/out") == str(outside)
    assert (tmp_path / "to0/real/file").read_text() == "r\n"
    assert (tmp_path / "to1/out/precious").read_text() == "ours\n"
    assert os.readlink(tmp_path / "to1/real") == str(outside)
    assert listing(outside).keys() == {".", "precious"}
    assert (outside / "precious").read_text() == "p\n"


# -- destinations --------------------------------------------------------------------------


def test_empty_directory_is_filled(
    rig: Rig, base: Path, tmp_path: Path, unsynced: list[int]
) -> None:
    dest = tmp_path / "out"
    dest.mkdir()
    export(rig, dest)
    assert len(unsynced) == 1
    assert difference(portable(listing(base)), portable(listing(dest))) == []


def test_link_to_an_empty_directory(rig: Rig, base: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    export(rig, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert difference(portable(listing(base)), portable(listing(tmp_path / "real"))) == []


def test_current_directory_is_filled_from_within(
    rig: Rig, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "out"
    dest.mkdir()
    number = dest.stat().st_ino
    monkeypatch.chdir(dest)
    export(rig, Path("."))
    assert dest.stat().st_ino == number
    assert difference(portable(listing(base)), portable(listing(dest))) == []


def test_refused_destinations(rig: Rig, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    before = listing(tmp_path)
    with history(rig) as workspace:
        point = workspace.point("@")
        for dest in (full, full / "x"):
            with pytest.raises(DestinationExistsError):
                export_tree(workspace, point, dest)
            with pytest.raises(DestinationExistsError):
                export_tree(workspace, point, dest, tar=True)
        for dest in (full / "no/where", full / "x/y"):
            with pytest.raises((NotADirectoryPathError, DestinationExistsError)):
                export_tree(workspace, point, dest)
            with pytest.raises(NotADirectoryPathError):
                export_tree(workspace, point, dest, tar=True)
    after = listing(tmp_path)
    for path in ("full", "full/x", "."):
        assert before[path] == after[path]


def test_nothing_is_left_of_a_failed_export(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory_export, "_write_all", full)
    with pytest.raises(ExportFailedError, match="No space left"):
        export(rig, tmp_path / "out")
    assert not [name for name in os.listdir(tmp_path) if "out" in name]


def test_destination_that_appeared_meanwhile_is_left_alone(rig: Rig, tmp_path: Path) -> None:
    dest = tmp_path / "out"

    def appear(entries: int, size: int) -> None:
        dest.mkdir(exist_ok=True)
        (dest / "theirs").touch()

    with history(rig) as workspace, pytest.raises(DestinationExistsError):
        export_tree(workspace, workspace.point("@"), dest, progress=appear)
    # The report at the end comes after the rename, so only the one on the way counts.
    assert [p.name for p in dest.iterdir()] == ["theirs"]
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_export_into_the_base_does_not_export_itself(
    open_rig: OpenRig, base: Path, tmp_path: Path
) -> None:
    (base / "a/b").mkdir(parents=True)
    (base / "a/b/file").write_text("x\n")
    rig = open_rig()
    export(rig, base / "a/b/out")
    assert set(listing(base / "a/b/out")) == {".", "a", "a/b", "a/b/file"}
    with history(rig) as workspace:
        export_tree(workspace, workspace.point("@"), base / "a/b/tree.tar", tar=True)
    with tarfile.open(base / "a/b/tree.tar") as tar:
        assert not any("partial" in name for name in tar.getnames())


def test_deep_trees(open_rig: OpenRig, tmp_path: Path) -> None:
    """Deeper than files can be open, and than a path can be long."""
    rig = open_rig()
    parent = 1
    for number in range(100):
        name = b"%03d" % number * 60
        parent = namespace.create(rig.view, parent, name, stat.S_IFDIR | 0o755, 0, 0).ino
    leaf = namespace.create(rig.view, parent, b"leaf", stat.S_IFREG | 0o644, 0, 0)
    namespace.link(rig.view, leaf.ino, parent, b"twin")
    dest = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with history(rig) as workspace:
            limit = max(map(int, os.listdir("/proc/self/fd"))) + 12
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            result = export_tree(workspace, workspace.point("@"), dest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (result.directories, result.files, result.links) == (101, 1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        subprocess.run(["rm", "-rf", "--", dest], check=True)


# -- what cannot be written as it is -------------------------------------------------------------


def test_lost_and_damaged_files_do_not_take_the_rest_down(tmp_path: Path, base: Path) -> None:
    fill(base)
    rig = Rig(tmp_path / "store0", base)
    try:
        rig.create(b"damaged", os.urandom(1000))
        rig.tree()
        rig.volume.sync()
        digest = next(iter(rig.view.snapshot.extents(rig.at(b"damaged").content)))[1]
        with rig.volume.store.begin(write=True) as txn:
            txn.put(digest, b"\0\0\0\0\1x", db=rig.volume.store.tables["block"])
        rig.close()
        (base / "d/sub/deep").write_text("changed outside")
        rig.start()
        with history(rig) as workspace:
            point = workspace.point("@")
            result = export_tree(workspace, point, tmp_path / "out")
            packed = export_tree(workspace, point, tmp_path / "out.tar", tar=True)
    finally:
        rig.finish(check=False)
    for problems in (result.problems, packed.problems):
        assert [(p.path, p.what) for p in problems if p.what == "content"] == [
            (b"d/sub/deep", "content"),
            (b"damaged", "content"),
        ]
    assert not (tmp_path / "out/d/sub/deep").exists()
    assert (tmp_path / "out/d/one").read_text() == "one\n"
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert "./d/one" in tar.getnames()
        assert "./damaged" not in tar.getnames()


@pytest.fixture
def nobody() -> Iterator[Callable[[], None]]:
    """Call it to become an unprivileged user until the end of the test."""
    groups = os.getgroups()

    def drop() -> None:
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)

    yield drop
    os.seteuid(0)
    os.setegid(0)
    os.setgroups(groups)


@needs_root
def test_unprivileged_user_gets_what_is_possible(nobody: Callable[[], None]) -> None:
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    try:
        top.chmod(0o755)
        base, mine = top / "base", top / "mine"
        base.mkdir()
        mine.mkdir(mode=0o700)
        os.chown(mine, 65534, 65534)
        (base / "theirs").write_text("root's\n")
        (base / "theirs").chmod(0o6755)
        (base / "locked").mkdir()
        (base / "locked/file").write_text("x\n")
        os.link(base / "locked/file", base / "name")
        os.mknod(base / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chown(base / "locked/file", 65534, 65534)
        os.chown(base / "locked", 65534, 65534)
        os.chown(base, 65534, 65534)
        (base / "locked").chmod(0o500)
        rig = Rig(top / "store", base)
        try:
            rig.tree()
            rig.setxattr(b"name", b"trusted.x", b"y")
            with history(rig) as workspace:
                nobody()
                result = export_tree(workspace, workspace.point("@"), mine / "out")
                within = mine / "within"
                within.mkdir()
                with pytest.MonkeyPatch.context() as patching:
                    patching.chdir(within)
                    export_tree(workspace, workspace.point("@"), within)
                with pytest.raises(PermissionDeniedError):
                    export_tree(workspace, workspace.point("@"), top / "out")
                with pytest.raises(PermissionDeniedError):
                    export_tree(workspace, workspace.point("@"), top / "out.tar", tar=True)
                os.seteuid(0)
        finally:
            rig.finish(check=False)
        for made in (mine / "out", within):
            found = listing(made)
            assert found["locked"].mode == 0o500
            assert found["locked/file"].ino == found["name"].ino
            assert (found["theirs"].mode, found["theirs"].uid) == (0o755, 65534)
            assert "null" not in found
        assert sorted((p.path, p.what) for p in result.problems) == [
            (b"locked/file", "xattr"),
            (b"null", "special"),
            (b"theirs", "mode"),
            (b"theirs", "owner"),
        ]
        assert result.to_json()["problem_count"] == 4
    finally:
        shutil.rmtree(top)


# -- tar -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
@pytest.mark.parametrize("stream", [False, True])
def test_archive_unpacked_by_tar_is_the_state(
    rig: Rig, base: Path, tmp_path: Path, stream: bool
) -> None:
    archive, out = tmp_path / "tree.tar", tmp_path / "out"
    with history(rig) as workspace:
        point = workspace.point("@")
        if stream:
            with open(archive, "wb") as file:
                result = export_tree(workspace, point, file)
        else:
            result = export_tree(workspace, point, archive, tar=True)
    out.mkdir()
    options = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"]
    subprocess.run(["tar", *options, archive], cwd=out, check=True)
    expected = portable(listing(base))
    assert expected.pop("socket").kind == "socket"
    assert difference(expected, portable(listing(out))) == []
    assert links_of(out) == links_of(base)
    assert [(p.path, p.what) for p in result.problems] == [(b"socket", "special")]
    assert (result.directories, result.links, result.symlinks) == (4, 2, 3)
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_archive_to_a_pipe(rig: Rig) -> None:
    class Pipe(io.RawIOBase):
        """Cannot seek, and does not know where it is."""

        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            assert isinstance(data, bytes)
            self.parts.append(data)
            return len(data)

    pipe = Pipe()
    with history(rig) as workspace:
        export_tree(workspace, workspace.point("@"), pipe, tar=True)  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(b"".join(pipe.parts))) as tar:
        member = tar.getmember("./d/one")
        assert (
            member.pax_headers["SCHILY.xattr.user.note"].encode("utf-8", "surrogateescape")
            == b"\0\xff=%\n"
        )
        assert tar.getmember("./empty").pax_headers["mtime"] == "-1.500000001"


def test_progress_is_told(open_rig: OpenRig, base: Path, tmp_path: Path) -> None:
    for number in range(600):
        (base / str(number)).touch()
    rig = open_rig()
    seen: list[tuple[int, int]] = []
    with history(rig) as workspace:
        for tar in (False, True):
            seen.clear()
            export_tree(
                workspace,
                workspace.point("@"),
                tmp_path / f"out{tar}",
                tar=tar,
                progress=lambda entries, size: seen.append((entries, size)),
            )
            assert [entries for entries, _ in seen] == [256, 512, 601]


def test_reading_writes_nothing(rig: Rig, tmp_path: Path) -> None:
    """What was not looked into stays so."""
    rig.volume.sync()
    before = rig.record_counts()
    export(rig, tmp_path / "out")
    assert rig.record_counts() == before
    assert rig.volume.importer.origin(1) is not None
    assert rig.volume.reader.get("dirent", keys.dirent_key(1, b"d", 0)) is None
