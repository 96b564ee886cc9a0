"""A place for a real agent, where it reaches nothing but what a test has put there.

A `Room` is a network namespace with loopback alone. `Room.command` makes a command line that runs
a program in it, in a mount namespace of its own where the user's own settings of agents are hidden
below empty directories, and that ends whatever the program leaves behind. As root it needs nothing
more; other users do it in a user namespace, in which they stay who they are (user_namespaces(7)).

The same file is the program that does this: `make` and `enter`, see `main`. It is started with
`python -I`, imports the standard library only, and has one thread, as setns(2) wants it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x0002_0000, 0x1000_0000, 0x4000_0000
_MS_BIND, _MS_RECURSIVE, _MS_SLAVE = 0x1000, 0x4000, 0x8_0000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_SECONDS = 20

_OF_THE_USER = (
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".cursor",
    ".opencode",
    ".config",
    ".local/share/opencode",
    ".local/share/cowfs",
)
_OF_THE_MACHINE = (
    "/etc/claude-code",
    "/etc/codex",
    "/etc/gemini-cli",
    "/etc/opencode",
    "/etc/cursor",
)


class NoRoomError(Exception):
    """This machine does not let this user have namespaces; the text says why."""


class Room:
    """A network with loopback alone. `listener` is a TCP socket in it that listens on 127.0.0.1.

    Namespaces live as long as something holds them: here the descriptors of this object.
    """

    def __init__(self, *, as_user: bool = False) -> None:
        """as_user: in a user namespace, though it is root that asks. Raises NoRoomError."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            verb = "make-as-user" if as_user else "make"
            words = [*_PROGRAM, verb, str(theirs.fileno())]
            done = subprocess.run(
                words,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
            if done.returncode:
                raise NoRoomError(done.stderr.decode().strip())
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 3)
        self.listener = socket.socket(fileno=descriptors[0])
        self._namespaces = descriptors[1:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The namespaces end with the last process in them."""
        self.listener.close()
        for fd in self._namespaces:
            os.close(fd)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process has to inherit (`pass_fds`) to enter."""
        return tuple(self._namespaces)

    def command(self, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs a program in here. It ends with the program's exit code, 128
        and the number when a signal ended that; then nothing that the program started is left. A
        SIGTERM ends all of it."""
        numbers = ",".join(map(str, self._namespaces))
        return [*_PROGRAM, "enter", numbers, *hidden(), "--", *[os.fspath(word) for word in words]]


_PROGRAM = (sys.executable, "-I", os.path.abspath(__file__))


def hidden() -> list[str]:
    """Files and directories with the user's own settings of agents; those that are there."""
    homes = {pwd.getpwuid(os.getuid()).pw_dir, os.path.expanduser("~")}
    names = [os.path.join(home, name) for home in homes for name in _OF_THE_USER]
    return [path for path in (*names, *_OF_THE_MACHINE) if os.path.exists(path)]


# -- the program --------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """`make FD` and `make-as-user FD` send a listening socket, a network namespace and, if one was
    needed or asked for, a user namespace to the Unix socket FD. `enter FD,FD PATH... -- WORD...`
    hides the paths and runs a program."""
    verb, what, *rest = arguments
    if verb != "enter":
        _make(int(what), as_user=verb == "make-as-user")
        return 0
    at = rest.index("--")
    return _enter([int(number) for number in what.split(",")], rest[:at], rest[at + 1 :])


def _make(to: int, *, as_user: bool) -> None:
    if not as_user:
        try:
            _unshare(_NEW_NETWORK)
            _bring_loopback_up()
        except PermissionError:
            as_user = True
    if as_user:
        user, group = os.getuid(), os.getgid()
        _unshare(_NEW_USER | _NEW_NETWORK)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        _bring_loopback_up()
    with socket.socket() as listener, socket.socket(fileno=to) as connection:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        kinds = ["net", "user"] if as_user else ["net"]
        namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
        socket.send_fds(connection, [b"."], [listener.fileno(), *namespaces])


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _enter(namespaces: Sequence[int], hide: Sequence[str], words: Sequence[str]) -> int:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # when the tests end without a word
    # The user namespace first: it gives the right to enter the other.
    for fd in reversed(namespaces):
        _check(_libc.setns(fd, 0), "setns")
        os.close(fd)
    _unshare(_NEW_MOUNTS)
    _mount("none", "/", "", _MS_RECURSIVE | _MS_SLAVE)
    _let_go_of_other_workspaces()
    for path in hide:
        if os.path.isdir(path):
            _mount("none", path, "tmpfs", 0)
        else:
            _mount("/dev/null", path, "", _MS_BIND)
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child = os.fork()
    if child == 0:
        _run(words)
    try:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
    finally:
        _end_children()


def _let_go_of_other_workspaces() -> None:
    """This namespace has a copy of each mount. Others could not be unmounted while it is there."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split(" - ") for line in file]
    here = os.getcwd() + "/"
    for before, after in rows:
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if after.startswith("fuse.cowfs ") and not here.startswith(point + "/"):
            # In a user namespace they cannot be taken apart (mount_namespaces(7)).
            _libc.umount2(os.fsencode(point), _MNT_DETACH)


def _run(words: Sequence[str]) -> None:
    """Become the program; it ends with this process's parent."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execv(words[0], list(words))
    except BaseException as error:
        print(f"{words[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _end_children() -> None:
    """Orphans become children of this process (PR_SET_CHILD_SUBREAPER in prctl(2)): kill them, and
    what becomes one by that, until none is left."""
    while True:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children(parent: int) -> list[int]:
    """The processes that a process has started and not waited for."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b") ")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(name))
    return found


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(kinds: int) -> None:
    _check(_libc.unshare(kinds), "unshare")


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    words = [word.encode() if word else None for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), None), f"mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as problem:
        sys.exit(f"no namespaces here: {problem}")
