"""Processes that look at a tree without pause while it is restored, and know what they must see.

The parent announces the state that the tree has in shared memory. A look counts only if the same
announcement stood before and after it; then the answer must be exactly that state's. During a
restore the processes go on looking, so that requests are in flight while everything is swapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.mount.calls import PAGE, opened, read_all, write_file

_MOVING = 255
"""In place of a state's number: a restore is running, anything between the two may be seen."""
_NEVER = frozenset({"EIO", "ENOTCONN", "EBADF", "EAGAIN", "EINTR"})
"""Errors that no look may meet, not even while a restore is running. (ESTALE may come then: the
kernel gives it to one of two processes that follow a directory to its new place at once.)"""

Seen = tuple[Any, ...] | str
"""An answer: the facts, or the name of an errno."""


# -- what can be seen ---------------------------------------------------------------------------


def see_attributes(path: str) -> Seen:
    """lstat, without ctime."""
    return _guarded(lambda: _facts(os.lstat(path)))


def see_all_times(path: str) -> Seen:
    """lstat with ctime: for what nothing ever holds open."""
    return _guarded(lambda: (*_facts(st := os.lstat(path)), st.st_ctime_ns))


def see_content(path: str) -> Seen:
    """open, fstat and read a file."""

    def call() -> Seen:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with opened(path, flags) as fd:
            st = os.fstat(fd)
            if stat.S_ISDIR(st.st_mode):
                return ("directory",)
            return st.st_ino, st.st_size, st.st_mtime_ns, read_all(fd)

    return _guarded(call)


def see_listing(path: str) -> Seen:
    """readdir: names with their inode numbers and types."""

    def call() -> Seen:
        with os.scandir(path) as entries:
            return tuple(
                sorted((e.name, e.inode(), e.is_dir(follow_symlinks=False)) for e in entries)
            )

    return _guarded(call)


def see_link(path: str) -> Seen:
    """readlink, and what is behind the link."""
    return _guarded(lambda: (os.readlink(path), _facts(os.stat(path))))


def see_attribute(path: str) -> Seen:
    """An extended attribute."""
    return _guarded(lambda: (os.getxattr(path, "user.state", follow_symlinks=False),))


def _facts(st: os.stat_result) -> tuple[int, ...]:
    is_dir = stat.S_ISDIR(st.st_mode)
    return (
        st.st_ino,
        st.st_mode,
        st.st_nlink,
        st.st_uid,
        0 if is_dir else st.st_size,
        st.st_mtime_ns,
    )


def _guarded(call: Callable[[], Seen]) -> Seen:
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


LOOKS: dict[str, Callable[[str], Seen]] = {
    "attributes": see_attributes,
    "times": see_all_times,
    "content": see_content,
    "listing": see_listing,
    "link": see_link,
    "xattr": see_attribute,
}


# -- the states ---------------------------------------------------------------------------------


class Subject(NamedTuple):
    """A path and in which ways it is looked at."""

    path: str
    looks: tuple[str, ...]


def build(top: Path, state: int) -> None:
    """Bring the tree into one of three states, from whichever it is in."""
    for name in ("opened", "stat"):
        directory = top / name
        directory.mkdir(exist_ok=True)
        _build_names(directory, state)
    held = top / "held"
    held.mkdir(exist_ok=True)
    for number in range(4):
        path = held / f"f{number}"
        with opened(path, os.O_CREAT | os.O_RDWR) as fd:
            os.ftruncate(fd, 0)
            os.write(fd, _content(state, number) * (1 + (state + number) % 3 * 40))
            os.fchmod(fd, 0o600 + 8 * state)


def _content(state: int, number: int) -> bytes:
    return b"state %d of file %d; " % (state, number) * 500


def _build_names(top: Path, state: int) -> None:
    # The same inode with other content and size.
    for number in range(3):
        with opened(top / f"rewritten{number}", os.O_CREAT | os.O_WRONLY) as fd:
            os.ftruncate(fd, 0)
            os.write(fd, _content(state, number)[: (state * 3 + number + 1) * 999])
            os.ftruncate(fd, (state + 1) * 20_000)
    # The same size and time, other bytes.
    with opened(top / "samesize", os.O_CREAT | os.O_WRONLY) as fd:
        os.pwrite(fd, b"%d" % state * 70_000, 0)
        os.utime(fd, ns=(1, 1_700_000_000_000_000_000))
    # Another inode under the name.
    write_file(top / "new", _content(state, 9)[: 100 + state])
    os.rename(top / "new", top / "replaced")
    # Attributes only.
    write_file(top / "mode", b"mode", 0o640 + state)
    os.setxattr(top / "mode", "user.state", b"%d" % state)
    os.utime(top / "mode", ns=(5, 10**18 + state))
    # There in some states only.
    for other in range(3):
        path = top / f"only{other}"
        if other == state:
            write_file(path, b"only here")
        elif path.exists():
            path.unlink()
    # Of another type in each state.
    changing = top / "changing"
    if changing.is_symlink() or changing.is_file():
        changing.unlink()
    elif changing.is_dir():
        for name in os.listdir(changing):
            os.unlink(changing / name)
        changing.rmdir()
    if state == 0:
        write_file(changing, b"a file")
    elif state == 1:
        changing.mkdir()
        write_file(changing / "in", b"in")
    else:
        os.symlink("mode", changing)
    # A symbolic link with another target, hard links.
    link = top / "link"
    if link.is_symlink():
        link.unlink()
    os.symlink("mode" if state else "samesize", link)
    hard = top / "hard"
    if hard.exists():
        hard.unlink()
    os.link(top / ("mode" if state == 1 else "rewritten0"), hard)
    # A directory with other entries, and one that moves about.
    directory = top / "dir"
    directory.mkdir(exist_ok=True)
    for name in os.listdir(directory):
        if name != "stays" and not name.startswith("moving"):
            os.unlink(directory / name)
    write_file(directory / "stays", b"stays")
    for number in range(5):
        write_file(directory / f"s{state}-{number}", b"x" * number)
    places = [top / "moving", top / "dir/moving", top / "moving2"]
    there = [place for place in places if place.exists()]
    if not there:
        places[state].mkdir()
        write_file(places[state] / "in", b"moves")
    elif there[0] != places[state]:
        os.rename(there[0], places[state])


_NAMES = [
    *(f"rewritten{n}" for n in range(3)),
    "samesize",
    "replaced",
    "mode",
    *(f"only{n}" for n in range(3)),
    "changing",
    "changing/in",
    "link",
    "hard",
    "dir",
    "dir/stays",
    *(f"dir/s{s}-{n}" for s in range(3) for n in (0, 4)),
    "moving",
    "moving/in",
    "moving2",
    "moving2/in",
    "dir/moving",
    "dir/moving/in",
    "never",
    "never/in",
    "dir/never",
    "rewritten0/never",
]
_LISTED = ["", "dir", "moving", "moving2", "changing"]


def subjects(top: Path) -> dict[str, list[Subject]]:
    """What each process looks at, by the process's name."""

    def below(name: str, names: list[str], *looks: str) -> list[Subject]:
        return [Subject(os.path.join(top, name, path), looks) for path in names]

    return {
        "stat": below("opened", _NAMES, "attributes", "xattr"),
        "times": below("stat", _NAMES, "times"),
        "read": below("opened", _NAMES, "content"),
        "list": below("opened", _LISTED, "listing") + below("stat", _LISTED, "listing"),
        "link": below("opened", ["link", "changing"], "link", "attributes")
        + below("opened", _NAMES, "content", "attributes"),
    }


def expectation(found: dict[str, list[Subject]]) -> dict[tuple[str, str], Seen]:
    """What every look gives now."""
    return {
        (subject.path, kind): LOOKS[kind](subject.path)
        for group in found.values()
        for subject in group
        for kind in subject.looks
    }


# -- the processes ------------------------------------------------------------------------------


class Board:
    """What parent and children share: the announced state, and whether to end."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PAGE)
        # Stores whole words; struct.pack_into would first fill the place with zeros.
        self._words = memoryview(self._memory).cast("Q")
        self._generation = 0
        self.announce(_MOVING)

    def announce(self, state: int) -> None:
        self._generation += 1
        self._words[0] = self._generation << 8 | state

    def moving(self) -> None:
        self.announce(_MOVING)

    def read(self) -> int:
        return int(self._words[0])

    def stop(self) -> None:
        self._words[1] = 1

    @property
    def stopped(self) -> bool:
        return self._words[1] == 1


Expected = list[dict[tuple[str, str], Seen]]


class Worker:
    """One child process. It reports on a pipe: a line of text for each wrong answer, and a line
    `pass GENERATION` after it has looked at everything under one announcement."""

    def __init__(
        self, name: str, board: Board, run: Callable[[Callable[[str], None]], None]
    ) -> None:
        self.name = name
        self._reading, writing = os.pipe()
        self._seen = b""
        self.wrong: list[str] = []
        self.passes = 0
        self.last_pass = 0
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._reading)
                run(lambda text: _say(writing, text))
                status = 0
            except BaseException as error:
                _say(writing, f"{name}: {type(error).__name__}: {error}")
            finally:
                os._exit(status)
        os.close(writing)

    def wait_for_pass(self, generation: int, seconds: float) -> None:
        """Wait until the process has looked at everything since an announcement."""
        while self.last_pass < generation and not self.wrong:
            if not select.select([self._reading], [], [], seconds)[0]:
                raise AssertionError(f"{self.name} does not get on")
            if not self._take():
                break

    def _take(self) -> bool:
        piece = os.read(self._reading, 1 << 16)
        *lines, self._seen = (self._seen + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"pass "):
                self.passes += 1
                self.last_pass = int(line[5:])
            else:
                self.wrong.append(line.decode("utf-8", "replace"))
        return bool(piece)

    def poll(self) -> None:
        """Take what was reported so far."""
        while select.select([self._reading], [], [], 0)[0]:
            if not self._take():
                return

    def join(self) -> None:
        """Wait for its end (the board says stop)."""
        while self._take():
            pass
        os.close(self._reading)
        os.waitpid(self.pid, 0)

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def _say(fd: int, text: str) -> None:
    os.write(fd, text.replace("\n", " ").encode()[:3000] + b"\n")


def _short(seen: Seen) -> str:
    text = repr(seen)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)})"


def hammering(
    board: Board, group: list[Subject], expected: Expected, seed: int
) -> Callable[[Callable[[str], None]], None]:
    """The body of a process that looks at paths."""

    def run(say: Callable[[str], None]) -> None:
        rng = random.Random(seed)
        todo = [(subject.path, kind) for subject in group for kind in subject.looks]
        while not board.stopped:
            rng.shuffle(todo)
            started = board.read()
            whole = started & 255 != _MOVING
            for path, kind in todo:
                before = board.read()
                seen = LOOKS[kind](path)
                after = board.read()
                if isinstance(seen, str) and seen in _NEVER:
                    say(f"{kind} of {path}: {seen} ({before:x}, {after:x})")
                    return
                if before != after or before & 255 == _MOVING:
                    whole = False
                    continue
                right = expected[before & 255][path, kind]
                if seen != right:
                    again = LOOKS[kind](path)
                    say(
                        f"{kind} of {path}, generation {before >> 8}, state {before & 255}: "
                        f"{_short(seen)}, should be {_short(right)}; then {_short(again)}"
                    )
                    return
            if whole and board.read() == started:
                say(f"pass {started >> 8}")

    return run


def holding(
    board: Board, paths: list[str], states: list[list[tuple[int, int, int, int, bytes]]]
) -> Callable[[Callable[[str], None]], None]:
    """The body of a process that looks through handles and mappings that it keeps all the time.

    states: for each state and path (inode, mode, size, mtime, content).
    """

    def run(say: Callable[[str], None]) -> None:
        fds = [os.open(path, os.O_RDONLY) for path in paths]
        writable = [os.open(path, os.O_RDWR) for path in paths]
        smallest = [min(state[i][2] for state in states) for i in range(len(paths))]
        mappings = [
            mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            for fd, size in zip(fds, smallest, strict=True)
        ]
        while not board.stopped:
            started = board.read()
            whole = started & 255 != _MOVING
            for at, path in enumerate(paths):
                before = board.read()
                st = os.fstat(fds[at])
                by_write_handle = os.fstat(writable[at])
                content = read_all(fds[at])
                mapped = mappings[at][:]
                after = board.read()
                if before != after or before & 255 == _MOVING:
                    whole = False
                    continue
                ino, mode, size, mtime, right = states[before & 255][at]
                for found in (st, by_write_handle):
                    seen = found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns
                    if seen != (ino, mode, size, mtime):
                        say(f"fstat of {path}: {seen}, should be {(ino, mode, size, mtime)}")
                        return
                if content != right:
                    say(f"pread of {path}: {_short((content,))}, should be {_short((right,))}")
                    return
                if mapped != right[: smallest[at]]:
                    say(f"mapping of {path}: {_short((mapped,))}, should be {_short((right,))}")
                    return
            if whole and board.read() == started:
                say(f"pass {started >> 8}")

    return run


def held_paths(top: Path) -> list[str]:
    return [os.fspath(top / f"held/f{number}") for number in range(4)]


def held_state(top: Path) -> list[tuple[int, int, int, int, bytes]]:
    """What the held files show now."""
    out = []
    for path in held_paths(top):
        st = os.stat(path)
        out.append((st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns, Path(path).read_bytes()))
    return out
