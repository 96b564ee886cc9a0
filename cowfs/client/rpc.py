"""The client of a daemon's control socket (docs/protocol.md): JSON-RPC 2.0, one document a line.

Threading: a `Client` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

SOCKET_NAME = "control.sock"


class RpcError(Exception):
    """The daemon's answer was an error; `error` is the JSON form of a CowfsError."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", "error"))
        self.error = error


class ConnectionFailedError(Exception):
    """Nobody listens, or the connection broke."""


@contextlib.contextmanager
def short_path(store: str) -> Iterator[str]:
    """A path of the socket that fits into sockaddr_un (108 bytes) wherever the store is."""
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


class Client:
    """A connection to the daemon of one store."""

    def __init__(self, store: str, timeout: float | None = None) -> None:
        """Raises ConnectionFailedError when no daemon listens."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            with short_path(store) as path:
                self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ConnectionFailedError(str(error)) from None
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
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while True:
                message = json.loads(self._line())
                if "id" in message:
                    break
                if progress is not None:
                    progress(message["params"])
        except (OSError, ValueError) as error:
            raise ConnectionFailedError(str(error)) from None
        if "error" in message:
            raise RpcError(message["error"].get("data") or message["error"])
        return message["result"]

    def take_fd(self) -> int | None:
        """A descriptor that came with the last answer; the caller closes it."""
        return self._fds.pop() if self._fds else None

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 4)
            self._fds += fds
            if not data:
                raise ConnectionFailedError("the daemon closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        """Close the connection and descriptors that nobody took."""
        self._socket.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
