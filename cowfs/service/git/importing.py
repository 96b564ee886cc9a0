"""A `git fast-import` that is told commits, one after the other (git-fast-import(1)).

Threading: owned by one thread.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType

from cowfs.errors import GitFailedError
from cowfs.service.git.program import Git, said

_PIECE = 1 << 16


def quoted(path: bytes) -> bytes:
    """A path as fast-import takes any (as a string of C)."""
    path = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + path + b'"'


class FastImport:
    """A context manager. What was told counts when it ends without an exception; else git writes
    no reference, and what it wrote is garbage for its own collection.

    All methods raise GitFailedError when git ends before its time.
    """

    def __init__(self, git: Git, reference: str) -> None:
        """`reference`: what git calls the branch while it imports; set to the last commit."""
        self._reference = reference.encode()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        answers, theirs = os.pipe()
        try:
            self._process = git.start(
                "fast-import",
                "--quiet",
                "--force",
                "--done",
                "--date-format=raw",
                f"--cat-blob-fd={theirs}",
                pass_fds=[theirs],
                stderr=self._errors.fileno(),
            )
        except BaseException:
            os.close(answers)
            self._errors.close()
            raise
        finally:
            os.close(theirs)
        self._answers = os.fdopen(answers, "rb")

    def __enter__(self) -> FastImport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._tell(b"done\n")
                self._flush()
                self._close()
                if self._process.wait():
                    raise self._failed()
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._close()
            self._answers.close()
            self._errors.close()

    def commit(
        self,
        mark: int,
        author: bytes,
        message: bytes,
        parent: str | None,
        base: str | None,
        commands: Iterable[bytes | Iterator[bytes]],
    ) -> None:
        """One commit. author: name, address, time and zone. parent: a commit, ":N" for a mark.
        base: the commit whose files it begins with, None for no files. commands: of `remove`,
        `graft`, `write`."""
        begin = b""
        if base != parent:
            found = self.find(base, b"") if base is not None else None
            begin = graft(*found, b"") if found is not None else b"deleteall\n"
        if parent is None:
            self._tell(b"reset %s\n" % self._reference)
        self._tell(
            b"commit %s\nmark :%d\nauthor %s\ncommitter %s\ndata %d\n%s\n"
            % (self._reference, mark, author, author, len(message), message)
        )
        if parent is not None:
            self._tell(b"from %s\n" % parent.encode())
        self._tell(begin)
        for command in commands:
            if isinstance(command, bytes):
                self._tell(command)
            else:
                for piece in command:
                    self._tell(piece)
        self._tell(b"\n")

    def find(self, parent: str, path: bytes) -> tuple[bytes, bytes] | None:
        """(mode, id) of what a commit has at a path, None when it has nothing there."""
        answer = self._ask(b"ls %s %s\n" % (parent.encode(), quoted(path)))
        if answer.startswith(b"missing "):
            return None
        mode, _, rest = answer.partition(b" ")
        return mode, rest.partition(b" ")[2].partition(b"\t")[0]

    def commit_id(self, mark: int) -> str:
        """The id of a commit that was told."""
        return self._ask(b"get-mark :%d\n" % mark).strip().decode("ascii")

    def _ask(self, question: bytes) -> bytes:
        self._tell(question)
        self._flush()
        answer = self._answers.readline()
        if not answer.endswith(b"\n"):
            raise self._failed()
        return answer

    def _tell(self, words: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words)
        except (BrokenPipeError, ValueError):
            raise self._failed() from None

    def _flush(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._failed() from None

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _failed(self) -> GitFailedError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return GitFailedError(detail=f"git fast-import: {said(self._errors.read(_PIECE))}")


def remove(path: bytes) -> bytes:
    """The commit shall have nothing at a path."""
    return b"D %s\n" % quoted(path)


def graft(mode: bytes, identity: bytes, path: bytes) -> bytes:
    """The commit shall have at a path what git has already."""
    return b"M %s %s %s\n" % (mode, identity, quoted(path))


def write(mode: bytes, path: bytes, size: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The commit shall have a file of that size at a path."""
    yield b"M %s inline %s\ndata %d\n" % (mode, quoted(path), size)
    left = size
    for piece in pieces:
        left -= len(piece)
        yield piece
    if left:
        raise GitFailedError(detail=f"{os.fsdecode(path)} has another size than it says")
    yield b"\n"
