"""Every error that a person or a program can meet, in one place.

Each class has a stable symbolic `code`, an `exit_code` for the command line, a message that says
what happened and a `hint` that says what is safe and what to type next (contract 7). The codes
are listed in docs/errors.md; a code never changes its meaning.

Threading: plain exceptions; no state.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar


class CowfsError(Exception):
    """Base of all errors shown to people.

    `message` and `hint` are templates, filled from the keyword arguments of the constructor;
    the same arguments are the `details` of the JSON form.
    """

    code: ClassVar[str] = "COWFS_INTERNAL"
    exit_code: ClassVar[int] = 70
    message: ClassVar[str] = "internal error: {detail}"
    hint: ClassVar[str] = "Nothing was changed on purpose. `cowfs verify` checks the store."

    details: dict[str, Any]
    _told_hint: str | None = None

    def __init__(self, **details: Any) -> None:
        self.details = details
        super().__init__(self.message.format(**details))

    @property
    def hint_text(self) -> str:
        """The hint with its placeholders filled in."""
        return self.hint.format(**self.details) if self._told_hint is None else self._told_hint

    def to_json(self) -> dict[str, Any]:
        """The error as the `error` member of a JSON answer (docs/protocol.md)."""
        return {
            "code": self.code,
            "message": str(self),
            "hint": self.hint_text,
            "exit_code": self.exit_code,
            "details": {k: v for k, v in self.details.items() if _is_plain(v)},
        }


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, list, dict, type(None)))


class InternalError(CowfsError):
    """A defect of cowfs itself."""


# -- usage and names (exit 2 to 9) ----------------------------------------------------------


class UsageError(CowfsError):
    code = "COWFS_USAGE"
    exit_code = 2
    message = "{detail}"
    hint = "See `{command} --help`."

    def __init__(self, *, detail: str, command: str = "") -> None:
        super().__init__(detail=detail, command=f"cowfs {command}".rstrip())


class NotAWorkspaceError(CowfsError):
    code = "COWFS_NOT_A_WORKSPACE"
    exit_code = 3
    message = "{path} is not inside a cowfs workspace"
    hint = "Start one with `cowfs mount {path}`, or name one with `cowfs -C DIR ...`."


class UnknownCheckpointError(CowfsError):
    code = "COWFS_UNKNOWN_CHECKPOINT"
    exit_code = 4
    message = "no checkpoint matches {selector!r}{why}"
    hint = "`cowfs log` lists them. Nothing was changed."

    def __init__(self, *, selector: str, why: str = "") -> None:
        super().__init__(selector=selector, why=why)


class AmbiguousCheckpointError(CowfsError):
    code = "COWFS_AMBIGUOUS_CHECKPOINT"
    exit_code = 4
    message = "{selector!r} matches {count} checkpoints: {matches}"
    hint = "Type more of the id. Nothing was changed."


class UnknownPathError(CowfsError):
    code = "COWFS_UNKNOWN_PATH"
    exit_code = 5
    message = "{path} does not exist in {where}"
    hint = "`cowfs find NAME` and `cowfs log PATH` show where it was. Nothing was changed."


class NameNotFoundError(CowfsError):
    code = "COWFS_NAME_NOT_FOUND"
    exit_code = 5
    message = "no file of any checkpoint is called {name}{gone}"
    hint = (
        "What was made and deleted between two checkpoints is in none of them, and cannot be found."
    )


class NotTextError(CowfsError):
    code = "COWFS_NOT_TEXT"
    exit_code = 5
    message = "the lines of {path} cannot be told: {detail}"
    hint = "`cowfs blame` without --lines says who changed it last. Nothing was changed."


class NotARegularFileError(CowfsError):
    code = "COWFS_NOT_A_FILE"
    exit_code = 5
    message = "{path} in {where} is a {kind}, not a regular file or a link"
    hint = "`cowfs export` writes whole directories. Nothing was changed."


class LabelInUseError(CowfsError):
    code = "COWFS_LABEL_IN_USE"
    exit_code = 6
    message = "the label {label!r} already names checkpoint {checkpoint}"
    hint = "Choose another label. No checkpoint was made."


class LabelBesideError(CowfsError):
    """Labels are paths below `.cowfs/checkpoints`: of these two one would be a link and a directory
    at once."""

    code = "COWFS_LABEL_BESIDE"
    exit_code = 6
    message = "the label {label!r} cannot be beside {other!r}, which names checkpoint {checkpoint}"
    hint = "Choose another label: neither may be the other and '/'. No checkpoint was made."


class BadLabelError(CowfsError):
    code = "COWFS_BAD_LABEL"
    exit_code = 6
    message = "{label!r} cannot be a label: {reason}"
    hint = (
        "Use letters, digits, '.', '_', '-', up to 100, and '/' between such names; none begins"
        " with '-' or '.'."
    )


class NothingToUndoError(CowfsError):
    code = "COWFS_NOTHING_TO_UNDO"
    exit_code = 7
    message = "there is no restore to {what}"
    hint = "`cowfs log` shows the timeline; `cowfs restore CHECKPOINT` goes anywhere in it."


class DestinationExistsError(CowfsError):
    code = "COWFS_DESTINATION_EXISTS"
    exit_code = 8
    message = "{path} already exists and is not an empty directory"
    hint = "Name a path that does not exist yet. Nothing was written."


class ExportFailedError(CowfsError):
    code = "COWFS_EXPORT_FAILED"
    exit_code = 10
    message = "writing {path} failed: {detail}"
    hint = "Nothing is left of it, and the workspace was only read: put that right, then repeat."


class ConfigError(CowfsError):
    code = "COWFS_CONFIG"
    exit_code = 11
    message = "the configuration: {detail}"
    hint = "`cowfs config` lists all settings and where they come from. Nothing was changed."


class PinnedError(CowfsError):
    code = "COWFS_PINNED"
    exit_code = 12
    message = "checkpoint {checkpoint} is pinned{note}"
    hint = "`cowfs unpin {checkpoint}` allows it. Nothing was removed."


class StartCheckpointError(CowfsError):
    code = "COWFS_START_CHECKPOINT"
    exit_code = 13
    message = "checkpoint {checkpoint} is the state before the first mount, which always stays"
    hint = "Leave it out. Nothing was removed."


# -- mounting (exit 20 to 39) ---------------------------------------------------------------


class NotADirectoryPathError(CowfsError):
    code = "COWFS_NOT_A_DIRECTORY"
    exit_code = 20
    message = "{path} is not a directory"
    hint = "Name a directory that is there. Nothing was changed."


class ForbiddenWorkspaceError(CowfsError):
    code = "COWFS_FORBIDDEN_WORKSPACE"
    exit_code = 21
    message = "{path} is {what}; mounting over it would catch far more than a project"
    hint = "Name the project's own directory, or repeat with --force if you mean it."


class StoreInsideWorkspaceError(CowfsError):
    code = "COWFS_STORE_INSIDE_WORKSPACE"
    exit_code = 22
    message = "the store {store} lies inside the workspace {path}"
    hint = "Give another place with --store PATH, outside the project. Nothing was changed."


class NestedWorkspaceError(CowfsError):
    code = "COWFS_NESTED_WORKSPACE"
    exit_code = 23
    message = "{path} {relation} the workspace {other}"
    hint = "One workspace cannot hold another: unmount that one first, or mount only one of them."


class AlreadyMountedError(CowfsError):
    code = "COWFS_ALREADY_MOUNTED"
    exit_code = 24
    message = "{path} is already mounted (daemon pid {pid})"
    hint = "`cowfs status` shows it. Nothing was changed."


class NotMountedError(CowfsError):
    code = "COWFS_NOT_MOUNTED"
    exit_code = 25
    message = "{path} is not mounted"
    hint = "`cowfs mount {path}` mounts it."


class BusyError(CowfsError):
    code = "COWFS_BUSY"
    exit_code = 26
    message = "{path} is in use by {holders}"
    hint = (
        "Close them and repeat, or `cowfs unmount --force` (open files then lose their file"
        " system). Everything written so far is stored."
    )


class FuseUnavailableError(CowfsError):
    code = "COWFS_FUSE_UNAVAILABLE"
    exit_code = 27
    message = "FUSE cannot be used: {detail}"
    hint = "{advice}"


class MountFailedError(CowfsError):
    code = "COWFS_MOUNT_FAILED"
    exit_code = 28
    message = "mounting {path} failed: {detail}"
    hint = "The directory is as it was. The daemon's log is {log}."


class DaemonUnreachableError(CowfsError):
    code = "COWFS_DAEMON_UNREACHABLE"
    exit_code = 29
    message = "the daemon of {path} does not answer: {detail}"
    hint = "`cowfs mount {path}` cleans up and mounts again; what was synced is in the store."


class PermissionDeniedError(CowfsError):
    code = "COWFS_PERMISSION"
    exit_code = 30
    message = "permission denied: {detail}"
    hint = "Run the command as the owner of the workspace, or make that path accessible."

    def __init__(self, *, detail: str, advice: str | None = None) -> None:
        """advice: another hint, where something better is known."""
        super().__init__(detail=detail)
        self._told_hint = advice


class UnmountFailedError(CowfsError):
    code = "COWFS_UNMOUNT_FAILED"
    exit_code = 31
    message = "unmounting {path} failed: {detail}"
    hint = "Nothing is lost: the workspace is still mounted, and everything is stored."


# -- store (exit 40 to 59) ------------------------------------------------------------------


class StoreMissingError(CowfsError):
    code = "COWFS_STORE_MISSING"
    exit_code = 40
    message = "there is no cowfs store at {path}"
    hint = "If it was moved, name it with --store PATH. Nothing was changed."


class StoreFormatError(CowfsError):
    code = "COWFS_STORE_FORMAT"
    exit_code = 41
    message = "the store {path} has {detail}, which this cowfs ({version}) cannot read"
    hint = "Use a newer cowfs. The store was not touched."


class UpgradeFailedError(CowfsError):
    code = "COWFS_UPGRADE_FAILED"
    exit_code = 57
    message = "the store {path} cannot be upgraded to the format of this cowfs: {detail}"
    hint = (
        "It is as it was, and commands that only read it work. Put that right and repeat; the"
        " cowfs that wrote it can write it still."
    )


class StoreLockedError(CowfsError):
    code = "COWFS_STORE_LOCKED"
    exit_code = 42
    message = "the store {path} is in use by another process (pid {pid})"
    hint = "Only one process may write a store. Wait for it, or `cowfs unmount` the workspace."


class StoreDamagedError(CowfsError):
    code = "COWFS_STORE_DAMAGED"
    exit_code = 43
    message = "the store {path} is damaged: {detail}"
    hint = (
        "Nothing was changed. `cowfs verify` says what is hit, `cowfs verify --repair --dry-run`"
        " what can be saved."
    )


class StoreFullError(CowfsError):
    code = "COWFS_STORE_FULL"
    exit_code = 44
    message = "the store {path} cannot grow: {detail}"
    hint = "What is stored is safe; free disk space and the writes go on by themselves."


class StoreUnwritableError(CowfsError):
    code = "COWFS_STORE_UNWRITABLE"
    exit_code = 36
    message = "the store {path} cannot be written: {detail}"
    hint = (
        "What is stored is safe. See that its disk is there and writable; `cowfs unmount --force` "
        "ends without what is not stored yet."
    )


class LimitReachedError(CowfsError):
    code = "COWFS_LIMIT"
    exit_code = 37
    message = "a limit of the system was reached: {detail}"
    hint = "Nothing was changed. End other programs or raise the limit (`ulimit -n`, `ulimit -u`)."


class StoreForeignError(CowfsError):
    code = "COWFS_STORE_FOREIGN"
    exit_code = 45
    message = "the store {store} belongs to the workspace {other}, not to {path}"
    hint = "Name another place with --store PATH. Nothing was changed."


class ContentLostError(CowfsError):
    code = "COWFS_CONTENT_LOST"
    exit_code = 46
    message = "the old content of {path} is not in the store any more: {detail}"
    hint = "The file was changed outside cowfs before its content was saved. Others are fine."


class ThinnedError(ContentLostError):
    """Content that was given up on purpose. Who can do without what is lost can do without it."""

    code = "COWFS_THINNED"
    exit_code = 55
    message = "the content of {path} is not kept in {where} any more: it was volatile, and thinned"
    hint = (
        "Nothing was changed, and all else of it is there: leave volatile paths out (`restore` "
        "does, without --volatile; or --exclude PATTERN). `cowfs log {path}` lists newer ones."
    )


class VerifyFailedError(CowfsError):
    code = "COWFS_VERIFY_FAILED"
    exit_code = 47
    message = "verify found {count} problem(s)"
    hint = "The list says which checkpoints and paths are hit. `cowfs verify --repair` may help."


class ApplyConflictError(CowfsError):
    code = "COWFS_APPLY_FAILED"
    exit_code = 48
    message = "applying to {path} stopped: {detail}"
    hint = (
        "What was written is complete, and the store has everything. Put that right and repeat;"
        " `cowfs unmount --no-apply` unmounts without it."
    )


class DamagedRecordError(CowfsError):
    """A record or block that does not decode or does not match its hash."""

    code = "COWFS_DAMAGED_RECORD"
    exit_code = 49
    message = "damaged {what}: {detail}"
    hint = "`cowfs verify` says which checkpoints and paths are hit. Others are not affected."


class SealIncompleteError(CowfsError):
    code = "COWFS_SEAL_INCOMPLETE"
    exit_code = 59
    message = "not everything is sealed: {count} problem(s)"
    hint = "What was read is in the store. Make the paths above readable and repeat `cowfs seal`."


class RepairRefusedError(CowfsError):
    code = "COWFS_REPAIR_REFUSED"
    exit_code = 50
    message = "the store {path} cannot be repaired: {detail}"
    hint = (
        "Nothing was changed. What can be read still can: `cowfs export` writes whole states"
        " elsewhere. A copy of the store from before the damage replaces it. The directory that was"
        " mounted is safe, as it was last applied."
    )


class RepairNoRoomError(CowfsError):
    code = "COWFS_REPAIR_NO_ROOM"
    exit_code = 58
    message = "repairing the store {path} needs {needed} bytes of disk, and {free} are free"
    hint = (
        "Nothing was changed. Its pages are damaged, so another file is made beside it: free room"
        " there, or copy the store to a disk that has room and repair the copy."
    )


class RepairMountedError(CowfsError):
    code = "COWFS_REPAIR_MOUNTED"
    exit_code = 51
    message = "{path} is mounted; a repair would change what its daemon has in memory"
    hint = (
        "Nothing was changed. Type `cowfs unmount {path} --no-apply`, then"
        " `cowfs -C {base} verify --repair`, then `cowfs mount {base}`."
    )


class UnhealthyError(CowfsError):
    code = "COWFS_UNHEALTHY"
    exit_code = 52
    message = "{count} thing(s) are wrong"
    hint = "Each line above that begins with `bad` says what to do. Nothing was changed."


class ServiceUnavailableError(CowfsError):
    code = "COWFS_SERVICE_UNAVAILABLE"
    exit_code = 53
    message = "systemd cannot be told: {detail}"
    hint = "`cowfs mount DIR --restart` mounts without it and starts a killed daemon again."


class OutputFailedError(CowfsError):
    code = "COWFS_OUTPUT_FAILED"
    exit_code = 54
    message = "the output cannot be written: {detail}"
    hint = "What the command did is done (`cowfs log`, `cowfs status`), only what it says is lost."


# -- git (exit 60 to 63) --------------------------------------------------------------------


class GitUnavailableError(CowfsError):
    code = "COWFS_GIT_UNAVAILABLE"
    exit_code = 60
    message = "git cannot be used: {detail}"
    hint = "Install git 2.30 or newer (`apt-get install git`). Nothing was changed."


class GitRepositoryError(CowfsError):
    code = "COWFS_GIT_REPOSITORY"
    exit_code = 61
    message = "the git repository at {path} cannot be used: {detail}"
    hint = "{advice} Nothing was changed."


class GitBranchError(CowfsError):
    code = "COWFS_GIT_BRANCH"
    exit_code = 62
    message = "the branch {branch} is left alone: {detail}"
    hint = "Name another one with --branch NAME. Nothing was changed."


class GitFailedError(CowfsError):
    code = "COWFS_GIT_FAILED"
    exit_code = 63
    message = "git failed: {detail}"
    hint = "Branches, index and files are as they were. Put that right, and repeat."


# -- bisect (exit 64 to 67) -----------------------------------------------------------------


class BisectNotAncestorError(CowfsError):
    code = "COWFS_BISECT_NOT_ANCESTOR"
    exit_code = 64
    message = "{bad} was not made from the checkpoint {good}"
    hint = "`cowfs log` shows which states come from which. Name another --good or --bad."


class BisectEndError(CowfsError):
    code = "COWFS_BISECT_END"
    exit_code = 65
    message = "{detail}"
    hint = "Name a state where the command succeeds with --good, and one where it fails with --bad."


class BisectStoppedError(CowfsError):
    code = "COWFS_BISECT_STOPPED"
    exit_code = 66
    message = "bisect stopped at {checkpoint}: {detail}"
    hint = "Exit code 0 means good, 1 to 127 bad, 125 that it cannot be told. Nothing was changed."


class BisectUndecidedError(CowfsError):
    code = "COWFS_BISECT_UNDECIDED"
    exit_code = 67
    message = "the first bad one is among {count} checkpoints, and the others cannot be tested"
    hint = "The list says which. `cowfs diff GOOD BAD` shows what they changed together."


class CompactFailedError(CowfsError):
    code = "COWFS_COMPACT_FAILED"
    exit_code = 68
    message = "the store {path} cannot be compacted: {detail}"
    hint = "Nothing was changed; the store can be used as before."


class CompactHolesError(CowfsError):
    code = "COWFS_COMPACT_HOLES"
    exit_code = 69
    message = "the file system of the store {path} cannot take back parts of a file in use"
    hint = (
        "Nothing was changed. Unmount the workspace (`cowfs unmount DIR --no-apply`), type"
        " `cowfs compact DIR`, which writes the file anew, and mount it again."
    )


# -- sessions (exit 9, 71 to 79) ------------------------------------------------------------


class StateMovedError(CowfsError):
    """changes: who did what since, in sentences, the newest last; paths: some of what was touched;
    count: how many those are."""

    code = "COWFS_STATE_MOVED"
    exit_code = 9
    message = "the workspace is not what it was at {expected}: {what}"
    hint = "Nothing was changed. Look at it with `cowfs diff` and `cowfs changes`, and plan anew."


class UnknownSessionError(CowfsError):
    code = "COWFS_UNKNOWN_SESSION"
    exit_code = 71
    message = "no session matches {selector!r}"
    hint = "`cowfs sessions --all` lists them. Nothing was changed."


class AmbiguousSessionError(CowfsError):
    code = "COWFS_AMBIGUOUS_SESSION"
    exit_code = 72
    message = "{selector!r} can be {count} sessions: {matches}"
    hint = "Name one of them. Nothing was changed."


class NoConversationError(CowfsError):
    code = "COWFS_NO_CONVERSATION"
    exit_code = 73
    message = "{what} has no conversation: {detail}"
    hint = "{advice} Nothing was changed."


class NotCopyableConversationError(CowfsError):
    code = "COWFS_NOT_COPYABLE"
    exit_code = 74
    message = "the conversation cannot be copied: {detail}"
    hint = "Nothing was changed. `cowfs restore CHECKPOINT --code` restores the files alone."


class AgentMissingError(CowfsError):
    code = "COWFS_AGENT_MISSING"
    exit_code = 75
    message = "the program {program} is not there, or cannot be executed"
    hint = "Install it or put its directory into PATH; then type: {command}"


class SessionPlaceError(CowfsError):
    code = "COWFS_SESSION_PLACE"
    exit_code = 76
    message = "the session {session} worked in {path}, which is not there"
    hint = (
        "If the workspace was moved, move it back or mount it there (`cowfs mount DIR --at`); if"
        " the directory was deleted, `cowfs resume --code` brings it back."
    )


class SessionRunningError(CowfsError):
    code = "COWFS_SESSION_RUNNING"
    exit_code = 77
    message = "the session {session} is still running (pid {pid})"
    hint = (
        "Go on where it runs. `cowfs restore CHECKPOINT --conversation` makes a copy that goes on"
        " beside it. Nothing was changed."
    )


class NothingInterruptedError(CowfsError):
    code = "COWFS_NOTHING_INTERRUPTED"
    exit_code = 78
    message = "no session of {path} was interrupted"
    hint = "`cowfs sessions` lists them; `cowfs resume SESSION` goes on with any that has ended."


class AgentFailedError(CowfsError):
    code = "COWFS_AGENT_FAILED"
    exit_code = 79
    message = "the command {command} failed: {detail}"
    hint = "It prepares the conversation. Put that right, and type it again by hand."


class ExtraMissingError(CowfsError):
    code = "COWFS_EXTRA_MISSING"
    exit_code = 80
    message = "`cowfs {command}` needs a package that is not installed: {detail}"
    hint = (
        "`{python} -m pip install '{package}'` adds it; where cowfs was installed with pipx,"
        " `pipx inject cowfs-workspace '{package}'`. From the start: `cowfs-workspace[{extra}]`."
    )


class AgentSettingsError(CowfsError):
    code = "COWFS_AGENT_SETTINGS"
    exit_code = 81
    message = "the settings of {agent} in {path} cannot be changed: {detail}"
    hint = "They are as they were. Put that right and repeat."


def from_json(fields: dict[str, Any]) -> CowfsError:
    """The error of an answer (`CowfsError.to_json`), as it was raised by who gave it.

    One with a code that this version does not know has a class of its own, with that code.
    """
    code, exit_code = str(fields.get("code", "")), fields.get("exit_code", 70)
    kind = _classes().get(code)
    if kind is None:
        kind = type("OtherError", (CowfsError,), {"code": code, "exit_code": exit_code})
    error = kind.__new__(kind)
    Exception.__init__(error, str(fields.get("message", "error")))
    details = fields.get("details")
    error.details = details if isinstance(details, dict) else {}
    error._told_hint = str(fields.get("hint", ""))
    return error


def _classes() -> dict[str, type[CowfsError]]:
    """Code to class; of those that share one, the first, from which the others are derived."""
    found: dict[str, type[CowfsError]] = {}
    for value in globals().values():
        if isinstance(value, type) and issubclass(value, CowfsError) and value is not CowfsError:
            found.setdefault(value.code, value)
    return found


_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (
    "Commands that only read work. `mount -o remount,rw` makes that file system writable again, if"
    " it is not read-only for a reason."
)


def as_cowfs_error(error: Exception) -> CowfsError:
    """An error of Python or of a system call as one of ours."""
    if isinstance(error, CowfsError):
        return error
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        detail = f"{error.strerror or error}{where}"
        if isinstance(error, PermissionError):
            return PermissionDeniedError(detail=detail)
        if error.errno == errno.EROFS:
            return PermissionDeniedError(detail=detail, advice=_READ_ONLY)
        if error.errno in _NO_ROOM:
            return StoreFullError(path=error.filename or "or its disk", detail=detail)
        if error.errno in _LIMITS:
            return LimitReachedError(detail=detail)
    if isinstance(error, MemoryError):
        return LimitReachedError(detail="out of memory")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return LimitReachedError(detail="no further thread can be started")
    return InternalError(detail=f"{type(error).__name__}: {error}")
