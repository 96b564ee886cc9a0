"""The control socket: JSON-RPC 2.0, one JSON document a line (docs/protocol.md).

The socket has mode 0600; the peer's credentials are checked against the daemon's user all the same.

Threading: one thread accepts; each connection has a thread of its own, so that a slow request (an
apply, an unmount that waits) does not hold up a checkpoint. What must not overlap is serialised by
the methods themselves.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cowfs.errors import (
    CowfsError,
    InternalError,
    PermissionDeniedError,
    StoreDamagedError,
    UsageError,
    as_cowfs_error,
)
from cowfs.store.env import LmdbError
from cowfs.volume.history import Author

log = logging.getLogger(__name__)

SOCKET_NAME = "control.sock"
_MAX_LINE = 16 << 20
_CREDENTIALS = struct.Struct("3i")
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_PAUSE_SECONDS = 0.05


class Request:
    """One call: its parameters, who asks, and where progress goes.

    reply_fd: a descriptor that is sent along with the answer. afterwards: what is left to do when
    the answer has been sent.
    """

    def __init__(
        self, params: dict[str, Any], author: Author, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self.params = params
        self.author = author
        self._send = send
        self.reply_fd: int | None = None
        self.afterwards: Callable[[], None] | None = None

    def progress(self, **params: Any) -> None:
        """Tell the client how far it is."""
        self._send({"jsonrpc": "2.0", "method": "progress", "params": params})


Method = Callable[[Request], Any]


class ControlServer:
    """Listens for commands."""

    def __init__(self, store: Path, methods: dict[str, Method]) -> None:
        """Bind the socket in the store's directory. Raises OSError."""
        self._methods = methods
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = store / SOCKET_NAME
        self._idle = threading.Condition()
        self._answering = 0
        self._path.unlink(missing_ok=True)
        fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        old = os.umask(0o177)
        try:
            self._socket.bind(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
        finally:
            os.umask(old)
            os.close(fd)
        self._socket.listen(32)
        self._spare = _spare_descriptor()
        self._thread = threading.Thread(target=self._accept, name="cowfs-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening; connections end with the process."""
        with contextlib.suppress(OSError):  # its disk may be gone
            self._path.unlink()
        self._socket.close()

    def wait_idle(self, timeout: float) -> None:
        """Let requests that are being answered finish, so that no client is left without one."""
        with self._idle:
            self._idle.wait_for(lambda: not self._answering, timeout)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    return  # closed
                found = self._accept_by_spare(error)
                if found is None:
                    continue
                connection = found
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                _refuse(connection, error)

    def _accept_by_spare(self, error: OSError) -> socket.socket | None:
        """Wait for a connection by means of a descriptor that is kept for this, and refuse it, if
        there is still no other one by then."""
        if self._spare >= 0:
            os.close(self._spare)
        try:
            connection, _ = self._socket.accept()
        except OSError:
            time.sleep(_PAUSE_SECONDS)  # another thread was quicker, or it is the end
            connection = None
        self._spare = _spare_descriptor()
        if connection is not None and self._spare < 0:
            _refuse(connection, error)
            self._spare = _spare_descriptor()
            return None
        return connection

    def _serve(self, connection: socket.socket) -> None:
        lock = threading.Lock()

        def send(message: dict[str, Any], fds: list[int] | None = None) -> None:
            data = json.dumps(message).encode() + b"\n"
            with lock:
                if fds:
                    sent = socket.send_fds(connection, [data], fds)
                    data = data[sent:]
                connection.sendall(data)

        try:
            author = peer(connection)
            if author.uid not in (0, os.geteuid()):
                error = PermissionDeniedError(detail=f"user {author.uid} may not control it")
                _refuse(connection, error)
                return
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(_MAX_LINE):
                    with self._idle:
                        self._answering += 1
                    try:
                        self._answer(line, author, send)
                    finally:
                        with self._idle:
                            self._answering -= 1
                            self._idle.notify_all()
        except (OSError, ValueError) as error:
            log.debug("a control connection ended: %s", error)

    def _answer(self, line: bytes, author: Author, send: Callable[..., None]) -> None:
        number: Any = None
        request: Request | None = None
        try:
            message = _parse(line)
            number = message.get("id")
            method = self._methods.get(str(message.get("method")))
            if method is None:
                raise UsageError(detail=f"unknown method {message.get('method')!r}")
            request = Request(message.get("params") or {}, author, send)
            answer = {"jsonrpc": "2.0", "id": number, "result": method(request)}
        except CowfsError as error:
            answer = _error(number, error)
        except LmdbError as error:
            damage = StoreDamagedError(path=str(self._path.parent), detail=str(error))
            log.warning("a control request met damage: %s", error)
            answer = _error(number, damage)
        except Exception as error:
            known = as_cowfs_error(error)
            if isinstance(known, InternalError):
                log.exception("a control request failed")
            else:
                log.warning("a control request failed: %s", error)
            answer = _error(number, known)
        fds = [request.reply_fd] if request is not None and request.reply_fd is not None else None
        try:
            send(answer, fds)
        finally:
            if request is not None and request.afterwards is not None:
                _do_afterwards(request.afterwards)


def _do_afterwards(work: Callable[[], None]) -> None:
    try:
        work()
    except CowfsError as error:
        log.warning("after an answer: %s", error)
    except Exception:
        log.exception("after an answer")


def _spare_descriptor() -> int:
    """A descriptor that can be given up for another one; -1 when there is none."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _refuse(connection: socket.socket, error: Exception) -> None:
    """Tell a client that it is not served, without reading what it has sent."""
    known = as_cowfs_error(error)
    log.warning("a command is refused: %s", known)
    with connection, contextlib.suppress(OSError):
        connection.sendall(json.dumps(_error(None, known)).encode() + b"\n")


def _parse(line: bytes) -> dict[str, Any]:
    """One request. Raises UsageError when it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(detail=f"the request is not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("params") or {}, dict):
        raise UsageError(detail="a request is a JSON object with an object of params")
    return message


def _error(number: Any, error: CowfsError) -> dict[str, Any]:
    body = {"code": error.exit_code, "message": str(error), "data": error.to_json()}
    return {"jsonrpc": "2.0", "id": number, "error": body}


def peer(connection: socket.socket) -> Author:
    """Who is at the other end, from the kernel (SO_PEERCRED, unix(7)) and /proc."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Author(uid, user_name(uid), pid, command_line(pid))


def command_line(pid: int) -> str:
    """The command line of a process, at most 200 characters; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode("utf-8", "replace")[:200]


def user_name(uid: int) -> str:
    """Login name of a user, the number as text when it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
