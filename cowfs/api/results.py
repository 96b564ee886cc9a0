"""What a `Workspace` answers: immutable values.

Times are ns since 1970. Paths are text, relative to the top of the workspace where nothing else is
said ("." is the top); bytes that are not UTF-8 are lone surrogates, as `os.fsdecode` makes them.
What comes with a later version are more fields, never fewer.

Threading: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


def _moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class Counts:
    """How much changed, in inodes; a directory counts when it was made or removed."""

    created: int = 0
    modified: int = 0
    deleted: int = 0

    def __bool__(self) -> bool:
        return bool(self.created or self.modified or self.deleted)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. `str()` of it is its id, so it can stand where a checkpoint is named.

    id: 12 hexadecimal digits. epoch: grows from each checkpoint to the next. kind: `manual`,
    `auto`, `rescue` (of the state before a restore), `start`, `apply`, `external`, `prompt`,
    `tool`, `agent`, `turn`. label: "" if it has none. user, uid, pid, command: who made it.
    session: id of the agent's session that it was made in, "". target: of a rescue checkpoint, the
    id of the one whose restore it preceded. counts: what changed since the one before.
    git_commit, git_branch: what git was on, "". pinned: never removed by itself; note: why.
    thinned: patterns of volatile paths of which it does not have all contents any more.

    parent: id of the checkpoint that this state was made from; None for the first, and where it
    was not asked for. made: of what `Workspace.checkpoint` returned, whether it was made then.
    """

    id: str
    epoch: int
    kind: str
    time: int
    message: str
    label: str
    user: str
    uid: int
    pid: int
    command: str
    session: str
    target: str
    counts: Counts
    git_commit: str
    git_branch: str
    pinned: bool
    note: str
    thinned: tuple[str, ...] = ()
    parent: str | None = field(default=None, compare=False)
    made: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.id

    @property
    def moment(self) -> datetime:
        """When it was made, in UTC."""
        return _moment(self.time)


@dataclass(frozen=True, slots=True)
class File:
    """A file, directory or special file of a state.

    type: `file`, `directory`, `symlink`, `fifo`, `socket`, `character device`, `block device`.
    mode: permissions, such as 0o644. size: bytes. target: of a symbolic link, else "".
    """

    type: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs between two states.

    status: A added, D deleted, M modified, P only attributes, R renamed, T another type.
    path: in the new state; for D in the old one. old_path: in the old state, if that is another
    one. old, new: None for A and D respectively. modified: the content differs. attributes: which
    of mode, owner, group, xattrs differ. link_of: another path of the same file.
    added, removed: lines, if they were asked for and it is text.
    """

    status: str
    path: str
    old_path: str | None
    old: File | None
    new: File | None
    modified: bool
    attributes: tuple[str, ...] = ()
    link_of: str | None = None
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True, slots=True)
class Diff:
    """What must happen to state `a` to become state `b` (ids, or "@" for the present), by path."""

    a: str
    b: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """A git-style patch. omitted: (path, why) of what a patch cannot carry. complete: whether it is
    all of it."""

    a: str
    b: str
    data: bytes
    omitted: tuple[tuple[str, str], ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Preview:
    """What a restore would change. left_alone: patterns of volatile paths that differ and that it
    would leave as they are. state: names the present state, for `Workspace.restore(expect=...)`."""

    checkpoint: Checkpoint
    changes: tuple[Change, ...]
    left_alone: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore, an undo or a redo did.

    checkpoint: what the workspace shows now. rescue: the state before. changed: how many inodes
    differ. left_alone: patterns of volatile paths that differ and were not restored.
    """

    operation: str
    checkpoint: Checkpoint
    rescue: Checkpoint
    changed: int
    left_alone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A process that changed something. kind: `process`, `outside` (it changed the directory itself
    and not the workspace) or `unknown`. command: arguments, secrets left out. session: id of the
    agent's session that it belongs to, "". tool: the agent's call that it belongs to, ""."""

    kind: str
    pid: int
    name: str
    command: tuple[str, ...]
    user: str
    uid: int
    started: int
    session: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process did in one go, as `cowfs changes` tells it.

    time, until: of its first and last operation. operation: made, changed, removed, renamed,
    linked, restored ... text: a sentence. files, directories: how many it was about. bytes: how
    many were written. below: the directory that has all of them. paths: each with the second path
    of a rename, or None; of very many only some. checkpoint: id of the one that was restored.
    outside: done by somebody of no session, while one was going on.
    """

    time: int
    until: int
    process: Process
    operation: str
    text: str
    files: int
    directories: int
    bytes: int
    below: str
    paths: tuple[tuple[str, str | None], ...]
    checkpoint: str | None
    outside: bool


@dataclass(frozen=True, slots=True)
class Status:
    """How a workspace is.

    base: the directory that it was made from. mountpoint: where it is mounted, or was last. pid:
    of the daemon, None without one. last_checkpoint: the newest one that the present state comes
    from. counts: what changed since then. health: `ok`, `warning`, `failing` (the store cannot be
    written), `dead` (it is mounted, and its daemon is gone). problems: in words. state: names the
    present state, for `Workspace.restore(expect=...)`; None while changes are on their way.
    details: all that `cowfs status --json` says.
    """

    mounted: bool
    base: str
    mountpoint: str
    store: str
    pid: int | None
    branch: str
    last_checkpoint: Checkpoint | None
    counts: Counts
    health: str
    problems: tuple[str, ...]
    state: str | None
    details: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unmounted:
    """applied: how many things were written into the directory, by what was done (created, written,
    deleted, moved, attributes); None if nothing was to be written. problems: (path, why) of what
    could not be. lost: "" or, of a forced unmount, why the last changes could not be stored."""

    applied: Mapping[str, int] | None
    problems: tuple[tuple[str, str], ...]
    lost: str


@dataclass(frozen=True, slots=True)
class Session:
    """A run of an agent, or of one of its sub-agents (whose id is that of the session, "/", its
    own).

    state: `active`, `ended`, or `interrupted` (its process is gone, and it never ended). started,
    last, ended: when; 0 if it did not. reason: why it ended, in the agent's words. parent: id of
    the session that started it, "". kind: type of a sub-agent. pid: its process, 0 if unknown.
    cwd, transcript: absolute paths. prompt: the last one. origin: id of the session that it is a
    copy of, "". checkpoints: how many were made in it; last_checkpoint: id of the newest, "".
    """

    id: str
    agent: str
    state: str
    started: int
    last: int
    ended: int
    reason: str
    parent: str
    kind: str
    user: str
    pid: int
    cwd: str
    transcript: str
    title: str
    prompt: str
    version: str
    origin: str
    checkpoints: int
    last_checkpoint: str


@dataclass(frozen=True, slots=True)
class Context:
    """What a checkpoint knows besides the files: at which event of a session it was made, and what
    was around.

    session: its id, "" for none. event: `prompt`, `tool-start` ... "" when somebody asked for it.
    prompt: what the user had asked. tool, tool_text: the call that was about to begin. cwd: the
    working directory, absolute. environment: without secrets; hidden: names that were left out.
    processes, files, ports, locks: rows with names as in docs/format.md. complete: whether the
    conversation had all that belongs to it. missing: what could not be found out, in words.
    """

    session: str
    event: str
    prompt: str
    tool: str
    tool_text: str
    cwd: str
    environment: Mapping[str, str]
    hidden: tuple[str, ...]
    processes: tuple[Mapping[str, Any], ...]
    files: tuple[Mapping[str, Any], ...]
    ports: tuple[Mapping[str, Any], ...]
    locks: tuple[Mapping[str, Any], ...]
    complete: bool
    missing: tuple[str, ...]
