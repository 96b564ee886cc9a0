"""Telling the service manager that the daemon is ready (sd_notify(3)).

Threading: stateless.
"""

from __future__ import annotations

import contextlib
import os
import socket


def notify_ready() -> None:
    """Send `READY=1` to the socket in $NOTIFY_SOCKET, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.connect(address)
        manager.send(b"READY=1")
