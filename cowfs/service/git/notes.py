"""`cowfs git notes`: notes on a user's commits that name the checkpoints made on them.

Threading: as the workspace.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from cowfs.errors import GitFailedError
from cowfs.service.git.program import Git
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly

DEFAULT_REF = "refs/notes/cowfs"
FIRST = "Cowfs-First"
LAST = "Cowfs-Last"
_OURS = (FIRST.encode() + b": ", LAST.encode() + b": ")


@dataclass(frozen=True)
class Written:
    """ref: where the notes are. written, unchanged: how many commits have new ones, had them."""

    ref: str
    written: int
    unchanged: int


def notes(workspace: ReadOnly, git: Git, *, ref: str = DEFAULT_REF) -> Written:
    """Bring the notes on the commits of HEAD's branch up to date. A line of a note that is not
    ours stays. Raises GitFailedError, DamagedRecordError."""
    if not ref.startswith("refs/"):
        ref = f"refs/notes/{ref}"
    if not ref.startswith("refs/notes/") or not git.succeeds("check-ref-format", ref):
        raise GitFailedError(detail=f"{ref} cannot be a place for notes")
    wanted = _checkpoints_by_commit(workspace)
    if not git.succeeds("rev-parse", "--verify", "--quiet", "HEAD^{commit}"):
        return Written(ref, 0, 0)
    own = git.run("rev-list", "HEAD").decode("ascii").split()
    mine = [commit for commit in own if commit in wanted]
    known = _present(git, ref, mine)
    new: dict[str, bytes] = {}
    for commit in mine:
        old = known.get(commit, b"")
        text = _merged(old, *wanted[commit])
        if text != old:
            new[commit] = text
    if new:
        _write(git, ref, new)
    return Written(ref, len(new), len(mine) - len(new))


def _checkpoints_by_commit(workspace: ReadOnly) -> dict[str, tuple[str, str]]:
    """By commit the first and the last checkpoint that was made on it."""
    found: dict[str, tuple[str, str]] = {}
    for record in States(workspace.reader, workspace.branch.head).newest_first():
        if commit := record.git.commit:
            last = found[commit][1] if commit in found else record.id
            found[commit] = record.id, last
    return found


def _present(git: Git, ref: str, commits: list[str]) -> dict[str, bytes]:
    """By commit the note that it has."""
    if not git.succeeds("rev-parse", "--verify", "--quiet", ref):
        return {}
    lines = git.run("notes", f"--ref={ref}", "list").decode("ascii").splitlines()
    blobs = {commit: blob for blob, _, commit in (line.partition(" ") for line in lines)}
    noted = [commit for commit in commits if commit in blobs]
    wanted = "".join(f"{blobs[commit]}\n" for commit in noted).encode("ascii")
    listing = io.BytesIO(git.run("cat-file", "--batch", stdin=wanted) if noted else b"")
    found = {}
    for commit in noted:
        size = int(listing.readline().split()[2])
        found[commit] = listing.read(size + 1)[:size]
    return found


def _merged(old: bytes, first: str, last: str) -> bytes:
    kept = [line for line in old.splitlines() if not line.startswith(_OURS)]
    ours = [f"{FIRST}: {first}".encode(), f"{LAST}: {last}".encode()]
    return b"\n".join([*kept, *ours]) + b"\n"


def _write(git: Git, ref: str, new: dict[str, bytes]) -> None:
    """All in one commit of the notes' reference."""
    parts = []
    text = b"Notes of checkpoints\n"
    stamp = git.run("var", "GIT_COMMITTER_IDENT").strip()
    parts.append(b"commit %s\ncommitter %s\ndata %d\n%s" % (ref.encode(), stamp, len(text), text))
    if git.succeeds("rev-parse", "--verify", "--quiet", ref):
        parts.append(b"from %s^0\n" % ref.encode())
    for commit, note in new.items():
        parts.append(b"N inline %s\ndata %d\n%s\n" % (commit.encode(), len(note), note))
    parts.append(b"\ndone\n")
    git.run("fast-import", "--quiet", "--done", "--date-format=raw", stdin=b"".join(parts))
