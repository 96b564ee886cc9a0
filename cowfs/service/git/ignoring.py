"""What a state's own `.gitignore` files ignore, as git itself understands them.

The files are written into a temporary working tree as they are needed, and `git check-ignore`
is asked about paths there; nothing else is in that tree, and nobody's settings are read.
`.git/info/exclude` of the state counts, too.

Threading: owned by one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType

from cowfs.errors import CowfsError, GitFailedError
from cowfs.service.content import Tree, join
from cowfs.service.git.program import command, environment, said, start

NAME = b".gitignore"
EXCLUDE = b".git/info/exclude"
_PREFIX = "cowfs-git-"
_BATCH = 4096
"""Bytes of paths that are asked at once: they fit into a pipe, so that nobody waits for ever."""
_LARGEST = 1 << 20
"""Bytes; a greater file is taken for no rules."""


class Rules:
    """The rules of one state. A context manager: the temporary files are removed by it.

    tree: where files are read that were not needed yet; it may be replaced by that of a state in
    which no rule and no directory is different.
    """

    def __init__(self, tree: Tree, surroundings: Mapping[str, str]) -> None:
        """`surroundings`: the environment of this process."""
        self.tree = tree
        self._surroundings = surroundings
        self._top: bytes | None = None
        self._looked: dict[bytes, bool] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._exclude = self._text(EXCLUDE)

    def __enter__(self) -> Rules:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except OSError:
                    continue
        self._errors.close()
        if self._top is not None:
            shutil.rmtree(self._top, ignore_errors=True)

    def ignored(self, paths: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        """Those of some paths that are ignored; of each it is told whether it is a directory.
        Raises GitFailedError."""
        asked = [row for row in paths if self._has_rules(row[0].rpartition(b"/")[0])]
        found: set[bytes] = set()
        batch: list[bytes] = []
        size = 0
        for path, is_directory in asked:
            if is_directory:
                os.makedirs(os.path.join(self._place(), path), exist_ok=True)
            batch.append(path)
            size += len(path) + 3
            if size > _BATCH:
                found |= self._ask(batch)
                batch, size = [], 0
        return found | self._ask(batch) if batch else found

    def _has_rules(self, directory: bytes) -> bool:
        """Whether anything is said in a directory or above it; what is said there is written."""
        known = self._looked.get(directory)
        if known is None:
            above = directory.rpartition(b"/")[0]
            known = self._has_rules(above) if directory else bool(self._exclude)
            text = self._text(join(directory, NAME))
            if text:
                place = os.path.join(self._place(), directory)
                os.makedirs(place, exist_ok=True)
                with open(os.path.join(place, NAME), "wb") as file:
                    file.write(text)
                known = True
            self._looked[directory] = known
        return known

    def _text(self, path: bytes) -> bytes:
        """Rules of a file; none if it cannot be read. A link is none, as for git."""
        try:
            node = self.tree.find(path)
            if node is None or not node.is_file or node.size > _LARGEST:
                return b""
            return node.read()
        except CowfsError:
            return b""

    def _place(self) -> bytes:
        """The temporary working tree."""
        if self._top is None:
            _remove_left_behind()
            self._top = top = os.fsencode(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            for directory in (b".git/objects", b".git/refs", b".git/info"):
                os.makedirs(os.path.join(top, directory))
            with open(os.path.join(top, b".git/HEAD"), "wb") as head:
                head.write(b"ref: refs/heads/main\n")
            with open(os.path.join(top, EXCLUDE), "wb") as exclude:
                exclude.write(self._exclude)
        return self._top

    def _ask(self, paths: list[bytes]) -> set[bytes]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        found = set()
        try:
            # "./", since a name may begin with ":", which has a meaning to git.
            process.stdin.write(b"".join(b"./%s\0" % path for path in paths))
            process.stdin.flush()
            for path in paths:
                _, _, pattern, answered = (self._field() for _ in range(4))
                if answered != b"./" + path:
                    raise GitFailedError(detail=f"git check-ignore: no answer for {path!r}")
                if pattern and not pattern.startswith(b"!"):
                    found.add(path)
        except BrokenPipeError:
            raise self._failed() from None
        return found

    def _field(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        field = bytearray()
        while (byte := self._process.stdout.read(1)) != b"\0":
            if not byte:
                raise self._failed()
            field += byte
        return bytes(field)

    def _start(self) -> subprocess.Popen[bytes]:
        top = os.fsdecode(self._place())
        env = environment(
            self._surroundings,
            GIT_DIR=os.path.join(top, ".git"),
            GIT_WORK_TREE=top,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=os.devnull,
        )
        words = ["check-ignore", "--no-index", "--stdin", "-z", "--verbose", "--non-matching"]
        line = command(env, words, ["core.excludesFile=/dev/null", "core.quotePath=false"])
        self._process = start(line, top, env, stderr=self._errors.fileno())
        return self._process

    def _failed(self) -> GitFailedError:
        self._errors.seek(0)
        return GitFailedError(detail=f"git check-ignore: {said(self._errors.read())}")


def _remove_left_behind() -> None:
    """The temporary trees of processes that were killed."""
    top = tempfile.gettempdir()
    for name in os.listdir(top):
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        place = os.path.join(top, name)
        if not name.startswith(_PREFIX) or not pid.isdecimal() or os.path.exists(f"/proc/{pid}"):
            continue
        with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
            st = os.lstat(place)
            if st.st_uid == os.geteuid() and stat.S_ISDIR(st.st_mode):
                shutil.rmtree(place, ignore_errors=True)
