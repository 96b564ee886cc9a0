"""The client of a daemon's control socket (docs/protocol.md): JSON-RPC 2.0, one document a line.

`cowfs checkpoint` pays for every import made here: typing and contextlib alone cost as much as
all that the command does.

Threading: a `Client` belongs to one thread.
"""

from __future__ import annotations

import errno
import os
import select

from cowfs.client import lean
from cowfs.client.places import is_stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SOCKET_NAME = "control.sock"
_MAX_LINE = 256 << 20
_LOOK_SECONDS = 3.0
"""After so long without an answer the daemon is looked at."""


class RpcError(Exception):
    """The daemon's answer was an error; `error` is the JSON form of a CowfsError."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", "error"))
        self.error = error


class ConnectionFailedError(Exception):
    """Nobody listens, or the connection broke. `errno` is 0 when the reason is no system error."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.errno = code


def _connect(connection: lean.Socket, store: str) -> None:
    """Connect by a path that fits into sockaddr_un (108 bytes) wherever the store is."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
    finally:
        os.close(fd)


def _error_of(answer: object) -> dict[str, Any]:
    """The JSON form of a CowfsError in the error of an answer. Raises ConnectionFailedError."""
    found = answer.get("data") or answer if isinstance(answer, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("message"), str):
        raise ConnectionFailedError("its answer is an error that says nothing")
    return found


class Client:
    """A connection to the daemon of one store."""

    def __init__(self, store: str, timeout: float | None = None) -> None:
        """Raises ConnectionFailedError when no daemon listens."""
        self._socket = lean.unix_socket()
        self._socket.settimeout(timeout)
        try:
            _connect(self._socket, store)
        except OSError as error:
            self._socket.close()
            raise ConnectionFailedError(error.strerror or str(error), error.errno or 0) from None
        self._timeout = timeout
        self._buffer = b""
        self._fds: list[int] = []
        self._id = 0

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        """Call a method and return its result. Raises RpcError or ConnectionFailedError.

        `progress` is called for every progress notification that comes before the answer.
        """
        self._id += 1
        request = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params or {}}
        try:
            try:
                self._socket.sendall(lean.dumps(request).encode() + b"\n")
            except BrokenPipeError:
                pass  # it may have said why
            while "id" not in (message := self._message()):
                if progress is not None and isinstance(message.get("params"), dict):
                    progress(message["params"])
        except OSError as error:
            raise ConnectionFailedError(error.strerror or str(error), error.errno or 0) from None
        if "error" in message:
            raise RpcError(_error_of(message["error"]))
        if "result" not in message:
            raise ConnectionFailedError("its answer has no result")
        return message["result"]

    def _message(self) -> dict[str, Any]:
        try:
            message = lean.loads(self._line())
        except (ValueError, RecursionError) as error:
            raise ConnectionFailedError(f"its answer is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise ConnectionFailedError("its answer is no JSON object")
        return message

    def take_fd(self) -> int | None:
        """A descriptor that came with the last answer; the caller closes it."""
        return self._fds.pop() if self._fds else None

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            self._wait()
            data, fds = lean.receive(self._socket, 1 << 16, 4)
            self._fds += fds
            if not data:
                raise ConnectionFailedError("the daemon closed the connection")
            if len(self._buffer) > _MAX_LINE:
                raise ConnectionFailedError("its answer is too long")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _wait(self) -> None:
        """Until there is something to read; not for a daemon that was stopped (SIGSTOP), which
        would not even notice that nobody waits any more."""
        waited = 0.0
        poll = select.poll()  # select(2) takes no descriptor above 1023
        poll.register(self._socket.fileno(), select.POLLIN)
        while not poll.poll(_LOOK_SECONDS * 1000):
            waited += _LOOK_SECONDS
            pid = lean.peer_process(self._socket)
            if is_stopped(pid):
                raise ConnectionFailedError(
                    f"its process {pid} is stopped; `kill -CONT {pid}` lets it go on, "
                    f"`kill -KILL {pid}` ends it"
                )
            if self._timeout is not None and waited >= self._timeout:
                raise ConnectionFailedError(f"no answer in {waited:.0f} s", errno.ETIMEDOUT)

    def close(self) -> None:
        """Close the connection and descriptors that nobody took."""
        self._socket.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
