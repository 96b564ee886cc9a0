"""What a checkpoint says as a commit: author, message, trailers; and how that is found again.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.format import records
from cowfs.service.git.program import EMAIL, NAME, Git

CHECKPOINT = "Cowfs-Checkpoint"
KIND = "Cowfs-Kind"
LABEL = "Cowfs-Label"
STATE = "Cowfs-State"
_FORBIDDEN = str.maketrans("", "", "<>\n\0")
_CRUD = " .,:;\"'"
"""What git itself takes off both ends of a name."""


def author(record: records.CheckpointRecord) -> bytes:
    """Name, address, time and zone, as git writes them."""
    user = record.user.translate(_FORBIDDEN).strip(_CRUD)
    name, address = (user, f"{user.replace(' ', '.')}@cowfs.invalid") if user else (NAME, EMAIL)
    seconds = max(record.time // 1_000_000_000, 0)
    return _bytes(f"{name} <{address}> {seconds} +0000")


def message(record: records.CheckpointRecord, store: str) -> bytes:
    """The commit's message. store: the store's uuid."""
    text = record.message.replace("\0", "").strip() or f"checkpoint {record.id[:8]}"
    trailers = {
        CHECKPOINT: record.id,
        KIND: record.kind,
        LABEL: record.label,
        STATE: f"{store}/{record.epoch}",
    }
    lines = [f"{key}: {value}" for key, value in trailers.items() if value]
    return _bytes(text + "\n\n" + "\n".join(lines) + "\n")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class Exported:
    """One commit that was made of a checkpoint."""

    __slots__ = ("checkpoint", "commit", "epoch", "store")

    def __init__(self, commit: str, checkpoint: str, state: str) -> None:
        self.commit = commit
        self.checkpoint = checkpoint
        self.store, _, epoch = state.rpartition("/")
        self.epoch = int(epoch) if epoch.isdigit() else -1


def _trailer(key: str) -> str:
    return f"%(trailers:key={key},valueonly,separator=%x2C)"


def tips(git: Git, prefix: str) -> dict[str, Exported]:
    """By reference: the commits that references beginning with `prefix` (or equal to it) point to.
    One that was made otherwise has no checkpoint."""
    listing = git.run("for-each-ref", "--format=%(objectname) %(refname)", prefix)
    rows = [line.split(" ", 1) for line in listing.decode("utf-8", "surrogateescape").splitlines()]
    made = {one.commit: one for one in commits(git, [row[0] for row in rows], "--no-walk")}
    return {name: made.get(commit) or Exported(commit, "", "") for commit, name in rows}


def commits(git: Git, tips: list[str], *options: str) -> list[Exported]:
    """Those commits that were made of checkpoints, among some and their ancestors; options of
    git-rev-list(1) may say otherwise."""
    if not tips:
        return []
    form = "--format=%H%x00" + _trailer(CHECKPOINT) + "%x00" + _trailer(STATE)
    # The names on stdin, since a command line has an end.
    words = ["log", "--no-show-signature", form, *options, "--stdin"]
    found = []
    for line in _lines(git.run(*words, stdin=_bytes("\n".join(tips)))):
        commit, _, rest = line.partition("\0")
        checkpoint, _, state = rest.partition("\0")
        if checkpoint:
            last = checkpoint.rpartition(",")[2], state.rpartition(",")[2]
            found.append(Exported(commit, *last))
    return found


def _lines(listing: bytes) -> list[str]:
    return listing.decode("utf-8", "replace").split("\n")
