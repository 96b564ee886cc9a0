"""`cowfs [-C DIR] checkpoint` and `cowfs [-C DIR] status` on a live mount, the quick way.

Only what is plain is done here. Everything else (other options, no daemon, no workspace) is left
to the full command line, which does the same things and explains what is wrong.

Imports cowfs.client, which is standard library only, and light modules of this package.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_VALUES = {"-m": "message", "--message": "message", "--label": "label"}


class _Plain:
    """A command line that this module understands."""

    __slots__ = ("as_json", "command", "directory", "params")

    def __init__(self) -> None:
        self.directory: str | None = None
        self.command = ""
        self.params: dict[str, Any] = {}
        self.as_json = False


def _parse(arguments: list[str]) -> _Plain | None:
    """None for anything out of the ordinary."""
    plain = _Plain()
    rest = arguments
    if len(rest) > 1 and rest[0] == "-C":
        plain.directory, rest = rest[1], rest[2:]
    if not rest or rest[0] not in ("checkpoint", "status"):
        return None
    plain.command = rest[0]
    at = 1
    while at < len(rest):
        word = rest[at]
        if word == "--json":
            plain.as_json = True
        elif plain.command == "checkpoint" and word in _VALUES and at + 1 < len(rest):
            at += 1
            if not rest[at] and word == "--label":
                return None  # the daemon would take it for none
            plain.params[_VALUES[word]] = rest[at]
        else:
            return None
        at += 1
    return plain


def run(arguments: list[str]) -> int | None:
    """Do a plain command and return its exit code; None when the full command line has to."""
    plain = _parse(arguments)
    if plain is None or "_COWFS_COMPLETE" in os.environ:
        return None
    from cowfs.client import places, rpc

    try:
        here = places.current_directory()
    except OSError:
        return None
    live = places.find_live(os.path.join(here, plain.directory) if plain.directory else here)
    if live is None:
        return None
    mountpoint, store = live
    try:
        client = rpc.Client(store)
    except rpc.ConnectionFailedError:
        return None
    from cowfs.cli import output, reports

    output.prepare()
    if plain.command == "status":
        plain.params["flush"] = True
    elif "message" in plain.params:
        plain.params["message"] = output.valid(plain.params["message"])
    try:
        with client:
            answer = client.call(plain.command, plain.params)
    except rpc.RpcError as error:
        return output.error(error.error, as_json=plain.as_json)
    except rpc.ConnectionFailedError as error:
        from cowfs.errors import DaemonUnreachableError

        failed = DaemonUnreachableError(path=mountpoint, detail=str(error))
        return output.error(failed.to_json(), as_json=plain.as_json)
    if plain.command == "status":
        base = places.base_of(store) or mountpoint
        answer = reports.placed(answer, base=base, mountpoint=mountpoint, store=store, mounted=True)
    try:
        if plain.as_json:
            output.document(answer)
        else:
            report = reports.status if plain.command == "status" else reports.checkpoint
            output.text(report(answer))
    except BrokenPipeError:
        return output.broken_pipe()
    return 0
