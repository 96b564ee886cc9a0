"""What the control socket offers (docs/protocol.md lists the methods with their fields).

Threading: methods run in the threads of their connections. `_operation` serialises everything
that ends an epoch or touches the base.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from cowfs.daemon.control import Method, Request
from cowfs.errors import UsageError
from cowfs.format import records
from cowfs.mount.loop import LoopEndedError
from cowfs.service import removing
from cowfs.service import restore as restoring
from cowfs.service import status as reporting
from cowfs.service.apply import apply
from cowfs.service.automatic import unchanged
from cowfs.service.config import Retention
from cowfs.service.engine import commit
from cowfs.service.housekeeping import Cleaned, described
from cowfs.service.sealing import Pace, Sealed, SealingState, seal
from cowfs.service.sessions import recording
from cowfs.service.sessions.conversation import copy_session
from cowfs.service.sessions.listing import counted
from cowfs.service.shrinking import Shrunk
from cowfs.store.snapshot import Reader
from cowfs.store.writer import WriterEndedError

if TYPE_CHECKING:
    from cowfs.daemon.process import Daemon


class Methods:
    """The methods of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._engine = daemon.engine
        self._operation = daemon.operation
        self._sealing_state = SealingState()

    def table(self) -> dict[str, Method]:
        """Name to method."""
        return {
            "status": self.status,
            "checkpoint": self.checkpoint,
            "restore": self.restore,
            "undo": self.undo,
            "redo": self.redo,
            "flush": self.flush,
            "apply": self.apply,
            "seal": self.seal,
            "gc": self.gc,
            "compact": self.compact,
            "forget": self.forget,
            "pin": self.pin,
            "session.event": self.session_event,
            "session.copy": self.session_copy,
            "unmount": self.unmount,
        }

    def status(self, request: Request) -> Any:
        """State of the mount; `flush` true brings the kernel's dirty pages in first."""
        if request.params.get("flush"):
            self._engine.flush()
        report = self._engine.call(lambda: reporting.volume_status(self._engine.volume))
        with Reader(self._engine.volume.store) as reader:
            report["sealing"] = self._sealing_state(reader)
            report["sessions"] = counted(reader)
        report["automatic"] = self._daemon.autosaver.state()
        if problems := self._daemon.autosaver.problems():
            health = report["health"]
            health["problems"] += problems
            health["state"] = "warning" if health["state"] == "ok" else health["state"]
        report["collected"] = self._daemon.collector.state()
        report["pid"] = os.getpid()
        return report

    def checkpoint(self, request: Request) -> Any:
        """Params: message, label, if_changed. Result: checkpoint, daemon_seconds, made. What is
        around is looked at after the answer."""
        started = time.perf_counter()
        message, label = _text(request, "message"), _text(request, "label")
        with self._operation:
            last = unchanged(self._engine) if request.params.get("if_changed") else None
            record = last
            if record is None:
                record, request.afterwards = self._daemon.witness.checkpoint(
                    request.author, message=message, label=label
                )
        return {
            "checkpoint": records.to_dict(record),
            "made": last is None,
            "daemon_seconds": time.perf_counter() - started,
        }

    def restore(self, request: Request) -> Any:
        """Params: checkpoint, paths, exclude, volatile, conversation, expect. Result: see
        `Restored`."""
        what, expect = _text(request, "conversation"), _text(request, "expect")
        if what not in ("", "only", "both"):
            raise UsageError(detail=f"conversation is 'only' or 'both', not {what!r}")
        name = _text(request, "checkpoint")
        if what:
            self._daemon.witness.wait()
        with self._operation:
            if what == "only":
                return restoring.converse(
                    self._engine, request.author, name, expect=expect
                ).to_json()
            return restoring.restore(
                self._engine,
                request.author,
                name,
                paths=_names(request, "paths"),
                exclude=_names(request, "exclude"),
                volatile=bool(request.params.get("volatile")),
                conversation=what == "both",
                expect=expect,
            ).to_json()

    def undo(self, request: Request) -> Any:
        with self._operation:
            return restoring.undo(self._engine, request.author).to_json()

    def redo(self, request: Request) -> Any:
        with self._operation:
            return restoring.redo(self._engine, request.author).to_json()

    def flush(self, request: Request) -> Any:
        """Commit everything, so that a reader of the store sees it. Sends the base's descriptor."""
        self._daemon.witness.wait()
        self._engine.flush()
        commit(self._engine)
        request.reply_fd = self._daemon.base_fd
        return {"head_epoch": self._engine.volume.main.head}

    def apply(self, request: Request) -> Any:
        """Params: dry_run. Result: counts and problems. Progress: phase, done, total, path."""
        with self._operation:
            return apply(
                self._engine,
                request.author,
                request.progress,
                dry_run=bool(request.params.get("dry_run")),
            ).to_json()

    def seal(self, request: Request) -> Any:
        """Params: paths, rate (bytes a second), idle. Result: see `Sealed`. Progress: phase, done,
        total, bytes, path. Not serialised with the other operations, since it may last."""
        rate = request.params.get("rate") or 0
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise UsageError(detail="rate must be a number of bytes a second")
        busy = self._daemon.busy if request.params.get("idle") else None
        pace = Pace(rate, busy, self._daemon.stop)
        try:
            paths = _names(request, "paths")
            return seal(self._engine, paths, pace, request.progress).to_json()
        except LoopEndedError:
            problem = {"path": "", "detail": "the workspace was unmounted meanwhile"}
            return Sealed(problems=[problem]).to_json()

    def gc(self, request: Request) -> Any:
        """Params: rules (numbers, as of `Retention`; null: no policy), idle. Result: see `Cleaned`.
        Progress: phase, done, total. Takes the operation lock only for each of its steps."""
        rules = _rules(request.params.get("rules"))
        try:
            return self._daemon.collector.asked(
                rules, request.progress, idle=bool(request.params.get("idle"))
            ).to_json()
        except (LoopEndedError, WriterEndedError):
            return Cleaned().to_json()  # unmounted meanwhile

    def compact(self, request: Request) -> Any:
        """Result: see `Shrunk`. Progress: phase, done, total. Beside the other operations."""
        try:
            return self._daemon.collector.shrink(request.progress).to_json()
        except (LoopEndedError, WriterEndedError):
            return Shrunk().to_json()  # unmounted meanwhile

    def forget(self, request: Request) -> Any:
        """Params: checkpoints. Result: removed."""
        names = [os.fsdecode(name) for name in _names(request, "checkpoints")]
        gone = removing.forget(self._engine, self._operation, names)
        return {"removed": [described(record) for record in gone]}

    def pin(self, request: Request) -> Any:
        """Params: checkpoint, pinned, note. Result: checkpoint."""
        record = removing.pin(
            self._engine,
            self._operation,
            _text(request, "checkpoint"),
            pinned=bool(request.params.get("pinned", True)),
            note=_text(request, "note"),
        )
        return {"checkpoint": records.to_dict(record)}

    def session_event(self, request: Request) -> Any:
        """Params: see `Event`. Result: session, checkpoint, made, repeated, missed, changes,
        interrupted."""
        event = recording.parse(request.params)
        outcome = self._daemon.recorder.record(request.author, event)
        made, changes = outcome.checkpoint, outcome.changes
        return {
            "session": outcome.session.id,
            "checkpoint": records.to_dict(made) if made is not None else None,
            "made": outcome.made,
            "repeated": outcome.repeated,
            "missed": outcome.missed,
            "changes": changes.to_json() if changes else None,
            "interrupted": [
                {name: getattr(record, name) for name in ("id", "agent", "title", "prompt", "last")}
                for record in outcome.interrupted
            ],
        }

    def session_copy(self, request: Request) -> Any:
        """Params: session. Result: conversation, see `Continuation`."""
        registry, name = self._daemon.recorder.registry, _text(request, "session")
        with self._operation:
            told = copy_session(self._engine, registry, request.author, name)
        return {"conversation": told.to_json()}

    def unmount(self, request: Request) -> Any:
        """Params: force, apply. The daemon ends after the answer."""
        self._daemon.witness.wait()
        with self._operation:
            return self._daemon.unmount(
                force=bool(request.params.get("force")),
                apply_head=bool(request.params.get("apply")),
                author=request.author,
                progress=request.progress,
            )


def _rules(given: Any) -> Retention | None:
    if given is None:
        return None
    numbers = [name for name in Retention.__slots__ if name != "profile"]
    if not isinstance(given, dict) or not all(
        type(given.get(name, 0)) is int and given.get(name, 0) >= 0 for name in numbers
    ):
        raise UsageError(detail="rules must be numbers")
    return Retention("", *(given.get(name, 0) for name in numbers))


def _text(request: Request, name: str) -> str:
    value = request.params.get(name, "")
    if not isinstance(value, str):
        raise UsageError(detail=f"{name} must be a string")
    _bytes(value)
    return value


def _names(request: Request, name: str) -> list[bytes]:
    value = request.params.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(detail=f"{name} must be a list of strings")
    return [_bytes(item) for item in value]


def _bytes(text: str) -> bytes:
    """Bytes that are not UTF-8 come as lone surrogates, as everywhere in Python. Others are none.

    Raises UsageError.
    """
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(detail=f"{text!r} is no text") from None
