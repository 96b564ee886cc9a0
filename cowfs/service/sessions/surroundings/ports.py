"""TCP and UDP sockets that wait for others, from /proc/PID/net (proc_net(5)).

Each process sees those of its own network namespace.

Threading: pure functions on /proc.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

from cowfs.format.sessions import ListeningPort

PROTOCOLS = ("tcp", "tcp6", "udp", "udp6")
_WAITING = {"tcp": b"0A", "tcp6": b"0A", "udp": b"07", "udp6": b"07"}
"""States: TCP_LISTEN; a UDP socket that is not connected is in TCP_CLOSE."""
_WORD = 8


def listening(sockets: Mapping[int, Sequence[bytes]], most: int) -> list[ListeningPort]:
    """The ports of processes. sockets: inode numbers by pid. most: how many."""
    known: dict[bytes, list[tuple[bytes, ListeningPort]]] = {}
    found: list[ListeningPort] = []
    for pid, inodes in sockets.items():
        if not inodes:
            continue
        try:
            namespace = os.readlink(b"/proc/%d/ns/net" % pid)
        except OSError:
            continue
        if namespace not in known:
            known[namespace] = list(_waiting(pid))
        own = frozenset(inodes)
        for inode, port in known[namespace]:
            if inode in own and len(found) < most:
                found.append(ListeningPort(port.protocol, port.address, port.port, pid))
    return sorted(set(found), key=lambda port: (port.port, port.protocol, port.address, port.pid))


def now() -> set[tuple[str, str, int]]:
    """(protocol, address, port) of all that this process can see waiting, whoever has it."""
    return {(port.protocol, port.address, port.port) for _, port in _waiting(os.getpid())}


def _waiting(pid: int) -> Iterator[tuple[bytes, ListeningPort]]:
    """(inode of the socket, port) of a network namespace."""
    for protocol in PROTOCOLS:
        try:
            with open(f"/proc/{pid}/net/{protocol}", "rb") as file:
                lines = file.read().split(b"\n")[1:]
        except OSError:
            continue
        state = _WAITING[protocol]
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != state:
                continue
            address, _, port = fields[1].partition(b":")
            if number := int(port, 16):
                yield fields[9], ListeningPort(protocol, _address(address), number, 0)


def _address(digits: bytes) -> str:
    """Words of 32 bits in the machine's own order, in hexadecimal."""
    words = [int(digits[at : at + _WORD], 16) for at in range(0, len(digits), _WORD)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
