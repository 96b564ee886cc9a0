"""Making checkpoints.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from cowfs.errors import BadLabelError, LabelBesideError, LabelInUseError
from cowfs.format import records
from cowfs.service.engine import Engine, look_at_git
from cowfs.store.snapshot import Reader
from cowfs.store.steps import reached
from cowfs.volume import history
from cowfs.volume.history import Author

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_LABEL = re.compile(rf"(?!.{{101}}){_NAME}(?:/{_NAME})*")
"""Below `.cowfs/checkpoints` it is a path."""


def check_label(label: str) -> None:
    """Raises BadLabelError for a label that a selector could not name."""
    if not _LABEL.fullmatch(label):
        raise BadLabelError(label=label, reason="it has other characters, or is too long or empty")
    if re.fullmatch(r"[0-9a-fA-F]{4,12}", label):
        raise BadLabelError(label=label, reason="it looks like a checkpoint id")


def _check_free(reader: Reader, label: str) -> None:
    """Raises LabelInUseError, and LabelBesideError for a label that another one begins with, as the
    path that it is, or that begins with another one: only one of them could be looked up. Stores
    from before this rule may have both."""
    key = label.encode()
    if (used := reader.get("label", key)) is not None:
        raise LabelInUseError(label=label, checkpoint=used.decode()[:8])
    above = (key[:at] for at, byte in enumerate(key) if byte == ord("/"))
    for other in (*above, *islice(reader.keys("label", key + b"/"), 1)):
        if (used := reader.get("label", other)) is not None:
            raise LabelBesideError(label=label, other=other.decode(), checkpoint=used.decode()[:8])


def checkpoint(
    engine: Engine,
    author: Author,
    *,
    message: str = "",
    label: str = "",
    kind: str = "manual",
    session: str = "",
    context: bytes = b"",
    still: Callable[[], None] | None = None,
) -> records.CheckpointRecord:
    """Make a checkpoint; it is durable when this returns (contract 2). session, context: what it
    keeps besides the files (service/sessions/). still: called in its very moment, to raise if it is
    not wanted any more.

    Raises BadLabelError, LabelInUseError, LabelBesideError, StoreFullError.
    """
    if label:
        check_label(label)

    def seal() -> history.Sealed:
        if label:
            _check_free(engine.volume.reader, label)
        if still is not None:
            still()
        return history.seal(
            engine.volume,
            author,
            kind=kind,
            message=message,
            label=label,
            session=session,
            context=context,
        )

    look_at_git(engine)
    reached("checkpoint.begin")
    sealed = engine.at_one_moment(seal)
    reached("checkpoint.sealed")
    engine.volume.writer.wait(sealed.group)
    reached("checkpoint.durable")
    engine.call(engine.volume.reap)
    return sealed.checkpoint
