"""JSON and Unix sockets for a command that is run at every prompt of an agent.

Python's own modules `json` and `socket` import `re`, `enum`, `selectors` and what those need: half
of all that `cowfs checkpoint` takes beyond the start of Python. Underneath they are C, in
`_json` and `_socket`, which import nothing. CPython has had both in this form since 3.1, and the
tests compare them with the modules.

Threading: stateless functions; a socket belongs to one thread.
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner
from _socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Socket = _socket
_INT = 4
_BLANK = " \t\n\r"


class _Meaning:
    """What the scanner makes of each value: the same as `json.loads`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012


def loads(text: str | bytes) -> Any:
    """The value of a JSON document in UTF-8. Raises ValueError."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogatepass")
    start = len(text) - len(text.lstrip(_BLANK))
    try:
        value, end = make_scanner(_Meaning)(text, start)  # type: ignore[arg-type]
    except StopIteration as error:
        raise ValueError(f"no JSON value at {error.value}") from None
    if text[end:].strip(_BLANK):
        raise ValueError(f"something follows the JSON value at {end}")
    return value


def dumps(value: object) -> str:
    """A JSON document in one line of ASCII. Raises TypeError."""
    encode = make_encoder(
        {}, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True
    )
    return "".join(encode(value, 0))


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def unix_socket() -> Socket:
    """A stream socket that is not connected."""
    return Socket(AF_UNIX, SOCK_STREAM)


def receive(connection: Socket, most: int, descriptors: int) -> tuple[bytes, list[int]]:
    """Some bytes, and file descriptors that came with them (unix(7))."""
    data, ancillary, _, _ = connection.recvmsg(most, CMSG_SPACE(_INT * descriptors))
    found = []
    for level, kind, raw in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            whole = len(raw) - len(raw) % _INT
            found += [
                int.from_bytes(raw[at : at + _INT], sys.byteorder) for at in range(0, whole, _INT)
            ]
    return data, found


def peer_process(connection: Socket) -> int:
    """Pid of the process that listens at the other end (SO_PEERCRED, unix(7))."""
    return int.from_bytes(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[:_INT], sys.byteorder)
