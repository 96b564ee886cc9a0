"""Writing a state as a tar archive (POSIX.1-2001, "pax").

Times have their nanoseconds, extended attributes are `SCHILY.xattr.*` records (GNU tar and
libarchive restore them), further names of a file are hard links. Sockets do not exist in tar.

Threading: none of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import tarfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from cowfs.errors import (
    ContentLostError,
    CowfsError,
    DamagedRecordError,
    DestinationExistsError,
    ExportFailedError,
    PermissionDeniedError,
)
from cowfs.service.content import Node, Tree
from cowfs.service.exporting.directory import open_parent
from cowfs.service.exporting.report import Exported, Meter, Progress

_BUFFER = 1 << 18
_SMALL = 1 << 20
"""Files up to this size (bytes) are read before their header is written; of larger ones it is first
checked that they can be read. A member that has begun cannot be taken back."""
_UNREADABLE = (ContentLostError, DamagedRecordError, PermissionDeniedError)
_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def write_archive_file(tree: Tree, dest: Path, progress: Progress) -> Exported:
    """Write a state to a new file. Errors as of `export_tree`."""
    if os.path.lexists(dest):
        raise DestinationExistsError(path=str(dest))
    temporary = f".{dest.name[:100]}.{secrets.token_hex(4)}.partial"
    above = open_parent(Path(os.path.realpath(dest.parent)), os.O_PATH)
    try:
        return _write_file(tree, above, temporary, dest, progress)
    finally:
        # An interruption can come as soon as the file is there; it may also never have been made.
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=above)
        os.close(above)


def _write_file(tree: Tree, above: int, temporary: str, dest: Path, progress: Progress) -> Exported:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o666, dir_fd=above)
    except PermissionError:
        raise PermissionDeniedError(detail=f"{dest.parent} cannot be written") from None
    except OSError as error:
        raise ExportFailedError(path=str(dest), detail=error.strerror) from None
    try:
        with open(fd, "wb", buffering=0) as file:
            st = os.fstat(fd)
            report = _Archiver(tree, file, progress, (st.st_dev, st.st_ino)).run()
            os.fsync(fd)
        _name(above, temporary, dest)
    except OSError as error:
        raise ExportFailedError(path=str(dest), detail=error.strerror) from None
    return report


def _name(above: int, temporary: str, dest: Path) -> None:
    """Give the finished archive its name, never in place of something else."""
    name = dest.name
    try:
        os.link(temporary, name, src_dir_fd=above, dst_dir_fd=above, follow_symlinks=False)
    except FileExistsError:
        raise DestinationExistsError(path=str(dest)) from None
    except OSError:  # a file system without hard links
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=above, follow_symlinks=False)
            raise DestinationExistsError(path=str(dest)) from None
        os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)


def write_archive(tree: Tree, stream: BinaryIO, progress: Progress) -> Exported:
    """Write a state to a stream, which need not be seekable. Raises OSError of the stream."""
    return _Archiver(tree, stream, progress, None).run()


class _Archiver:
    """Writes one archive. `itself`: (dev, ino) of the archive's file, which is left out."""

    def __init__(
        self,
        tree: Tree,
        stream: BinaryIO | io.RawIOBase,
        progress: Progress,
        itself: tuple[int, int] | None,
    ) -> None:
        self._tree = tree
        self._stream = stream
        self._self = itself
        self._report = Exported()
        self._meter = Meter(self._report, progress)
        self._links: dict[Hashable, str] = {}

    def run(self) -> Exported:
        with tarfile.open(
            fileobj=cast(BinaryIO, self._stream),
            mode="w|",
            bufsize=_BUFFER,
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            tar.copybufsize = _BUFFER  # type: ignore[attr-defined]
            root = self._tree.root()
            self._add(tar, root)
            for node in self._tree.walk(root, self._failed):
                if self._self is None or node.base_identity != self._self:
                    self._add(tar, node)
                    self._meter.tick()
        self._meter.finish()
        return self._report

    def _failed(self, path: bytes, error: CowfsError) -> None:
        self._report.problem(path, "content", error)

    def _add(self, tar: tarfile.TarFile, node: Node) -> None:
        report = self._report
        kind = _TYPES.get(stat.S_IFMT(node.mode))
        if kind is None:
            report.problem(node.path, "special", f"a {node.kind} cannot be put into a tar archive")
            return
        info = self._header(node, kind)
        if not node.is_dir and node.nlink > 1:
            first = self._links.get(node.identity)
            if first is not None:
                info.type, info.linkname = tarfile.LNKTYPE, first
                report.links += 1
                tar.addfile(info)
                return
        if node.is_file:
            if not self._content(tar, node, info):
                return
        else:
            tar.addfile(info)
            if node.is_dir:
                report.directories += 1
            elif node.is_symlink:
                report.symlinks += 1
            else:
                report.specials += 1
        if not node.is_dir and node.nlink > 1:
            self._links[node.identity] = info.name

    def _content(self, tar: tarfile.TarFile, node: Node, info: tarfile.TarInfo) -> bool:
        """Add a regular file; False when it cannot be read."""
        try:
            if node.size <= _SMALL:
                source: BinaryIO = io.BytesIO(node.read())
            else:
                for _ in node.pieces():
                    pass
                source = cast(BinaryIO, _Stream(node.stream()))
        except _UNREADABLE as error:
            self._report.problem(node.path, "content", error)
            return False
        info.size = node.size
        tar.addfile(info, source)
        self._report.files += 1
        self._report.bytes_written += node.size
        return True

    def _header(self, node: Node, kind: bytes) -> tarfile.TarInfo:
        info = tarfile.TarInfo(_text(b"./" + node.path) if node.path else ".")
        info.type = kind
        info.mode = node.permissions
        info.uid, info.gid = node.uid, node.gid
        info.mtime = node.mtime // 1_000_000_000
        extra = {"atime": _seconds(node.atime)}
        if node.mtime % 1_000_000_000:
            extra["mtime"] = _seconds(node.mtime)
        if node.is_symlink:
            info.linkname = _text(node.target)
        elif node.rdev:
            info.devmajor, info.devminor = os.major(node.rdev), os.minor(node.rdev)
        for name, value in node.xattrs.items():
            try:
                key = name.decode("utf-8").replace("%", "%25").replace("=", "%3D")
            except UnicodeDecodeError:
                self._report.problem(node.path, "xattr", f"{name!r} has no name that tar can hold")
                continue
            extra["SCHILY.xattr." + key] = _text(value)
        info.pax_headers = extra
        return info


class _Stream(io.RawIOBase):
    """An iterator of bytes as a file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        parts = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        if size < 0:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]


def _seconds(nanoseconds: int) -> str:
    """Decimal seconds as in a pax record, exact."""
    whole, rest = divmod(abs(nanoseconds), 1_000_000_000)
    return f"{'-' if nanoseconds < 0 else ''}{whole}.{rest:09d}"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
