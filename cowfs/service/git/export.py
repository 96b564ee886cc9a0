"""`cowfs git export`: checkpoints as commits of a branch that belongs to cowfs.

Each checkpoint becomes one commit, whose parent is the commit of the checkpoint that it was made
from. The branch points to the newest one that the present state descends from; the ends of lines
that restores went back from are kept by references below `refs/cowfs/BRANCH/`. What was exported is
known from the trailers of commits, so that nothing has to be remembered elsewhere.

Why it is done like this: docs/design/git-export.md.

Threading: as the workspace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from cowfs.errors import GitBranchError
from cowfs.format import records
from cowfs.service.content import Tree
from cowfs.service.diff import diff
from cowfs.service.git import commits
from cowfs.service.git.commits import Exported
from cowfs.service.git.ignoring import Rules
from cowfs.service.git.importing import FastImport
from cowfs.service.git.program import Git
from cowfs.service.git.transition import Everything, Report, Transition, needs_other_rules
from cowfs.service.selectors import Point
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly

DEFAULT_BRANCH = "cowfs/main"
_AT_ONCE = 200
"""Checkpoints after which the branch is moved: an interrupted export goes on there."""
_RULES_KEPT = 4

Progress = Callable[[int, int], None]
"""Called with how many checkpoints are done, and of how many."""


@dataclass
class Result:
    """branch: its full name. commit: where it points, "" if there is none. made: (checkpoint,
    commit) of those that are new, oldest first. report: what could not be put into them."""

    branch: str
    commit: str = ""
    made: list[tuple[str, str]] = field(default_factory=list)
    report: Report = field(default_factory=Report)


def export(
    workspace: ReadOnly,
    git: Git,
    *,
    branch: str = DEFAULT_BRANCH,
    every: int = 1,
    everything: bool = False,
    progress: Progress,
) -> Result:
    """Bring a branch up to date with the checkpoints.

    every: of each line every so many checkpoints, and those with a label. everything: ignored
    files, too. Raises GitBranchError, GitFailedError, DamagedRecordError.
    """
    result = Result(f"refs/heads/{branch}")
    _must_be_free(git, branch, result.branch)
    with _Export(workspace, git, branch, everything, result.report) as run:
        pending = run.pending(every)
        total = len(pending)
        source = iter(pending)
        while some := list(islice(source, _AT_ONCE)):
            result.made += run.round(some, lambda n: progress(len(result.made) + n, total))
        result.commit = run.settle()
    return result


def _must_be_free(git: Git, branch: str, reference: str) -> None:
    if not git.succeeds("check-ref-format", reference) or branch.startswith("-"):
        raise GitBranchError(branch=branch, detail="a branch cannot have that name")
    listing = git.run("worktree", "list", "--porcelain").decode("utf-8", "surrogateescape")
    if f"branch {reference}" in listing.splitlines():
        raise GitBranchError(branch=branch, detail="it is checked out")


class _Export:
    """A context manager for the rules that are open.

    _known: what was exported, by epoch, as far as it was asked for. _leaves: of that the ends of
    lines. _references: ours, as they are.
    """

    def __init__(
        self, workspace: ReadOnly, git: Git, branch: str, everything: bool, report: Report
    ) -> None:
        self._workspace = workspace
        self._git = git
        self._branch = f"refs/heads/{branch}"
        self._sides = f"refs/cowfs/{branch}/"
        self._everything = everything
        self._report = report
        self._store = workspace.store.format().uuid
        self._states = States(workspace.reader, workspace.branch.head)
        self._line = self._states.lineage(self._states.head)
        self._rules: OrderedDict[int, Rules] = OrderedDict()
        self._all_known = False
        self._importing = self._sides + "importing"
        self._references = commits.tips(git, self._branch) | commits.tips(git, self._sides)
        self._references.pop(self._importing, None)  # of one that was interrupted
        self._known: dict[int, Exported] = {}
        self._see_what_is_there(branch)
        self._leaves = set(self._known)

    def _see_what_is_there(self, branch: str) -> None:
        tip = self._references.get(self._branch)
        if tip is None:
            self._all_known = True  # begin anew, whatever an older export has left
            return
        if not tip.checkpoint:
            detail = "its last commit was not made by `cowfs git export`"
            raise GitBranchError(branch=branch, detail=detail)
        if tip.store != self._store:
            raise GitBranchError(branch=branch, detail="it has the checkpoints of another store")
        for made in self._references.values():
            if made.checkpoint and made.store == self._store:
                self._known[made.epoch] = made

    def __enter__(self) -> _Export:
        return self

    def __exit__(self, *_exc: object) -> None:
        for rules in set(self._rules.values()):
            rules.__exit__(None, None, None)

    # -- which ----------------------------------------------------------------------------------

    def pending(self, every: int) -> list[records.CheckpointRecord]:
        """The checkpoints to export, oldest first."""
        last = max(self._known, default=-1)
        found = []
        for record in self._states.newest_first():
            if record.epoch <= last:
                break
            found.append(record)
        found.reverse()
        if every <= 1:
            return found
        self._know_all()
        return list(self._thinned(found, every))

    def _thinned(
        self, found: list[records.CheckpointRecord], every: int
    ) -> Iterator[records.CheckpointRecord]:
        distance: dict[int, int] = {}
        for record in found:
            steps, at = 0, record.epoch
            while at and at not in distance and at not in self._known:
                at, steps = self._states.parent(at), steps + 1
            here = distance.get(at, 0) + steps if at in self._known or at in distance else every
            if here >= every or record.label or not record.epoch:
                here = 0
                yield record
            distance[record.epoch] = here

    def _base(self, epoch: int) -> Exported | None:
        """The newest exported ancestor that is still a state; the first checkpoint has none."""
        at = epoch
        while at:
            at = self._states.parent(at)
            if at not in self._known:
                self._know_all()
            if at in self._known:
                return self._known[at]
        return None

    def _parent(self, epoch: int, base: Exported | None) -> Exported | None:
        """The newest exported ancestor, whether its checkpoint is still there or was removed."""
        first = base.epoch if base is not None else -1
        for at in self._states.lineage(epoch).epochs():
            if at <= first:
                break
            if at != epoch and at in self._known:
                return self._known[at]
        return base

    def _know_all(self) -> None:
        if not self._all_known:
            self._all_known = True
            names = [made.commit for made in self._references.values() if made.checkpoint]
            for made in commits.commits(self._git, names):
                if made.store == self._store:
                    self._known.setdefault(made.epoch, made)

    # -- making commits -------------------------------------------------------------------------

    def round(
        self, wanted: list[records.CheckpointRecord], progress: Callable[[int], None]
    ) -> list[tuple[str, str]]:
        """Some checkpoints, of which all become commits or none."""
        made: list[Exported] = []
        followed: set[int] = set()
        marks: dict[int, str] = {}
        with FastImport(self._git, self._importing) as importer:

            def name(one: Exported | None) -> str | None:
                """How the importer knows a commit."""
                return marks.get(one.epoch, one.commit) if one is not None else None

            for mark, record in enumerate(wanted, start=1):
                base = self._base(record.epoch)
                parent = self._parent(record.epoch, base)
                self._commit(importer, mark, record, base, (name(base), name(parent)))
                marks[record.epoch] = f":{mark}"
                commit = importer.commit_id(mark)
                exported = Exported(commit, record.id, f"{self._store}/{record.epoch}")
                self._known[record.epoch] = exported
                made.append(exported)
                if parent is not None:
                    followed.add(parent.epoch)
                progress(mark)
        self._leaves = (self._leaves | {one.epoch for one in made}) - followed
        self._move_references()
        return [(one.checkpoint, one.commit) for one in made]

    def _commit(
        self,
        importer: FastImport,
        mark: int,
        record: records.CheckpointRecord,
        base: Exported | None,
        names: tuple[str | None, str | None],
    ) -> None:
        """base: what it is compared with. names: how the importer knows that and the parent."""
        tree = self._tree(record.epoch)
        author, text = commits.author(record), commits.message(record, self._store)
        base_name, parent_name = names
        if base is None or base_name is None:
            rules = None if self._everything else self._rules_of(record.epoch, tree)
            sending = Everything(tree, rules, self._report).commands()
            importer.commit(mark, author, text, parent_name, None, sending)
            return
        before = self._tree(base.epoch)
        changes = diff(self._workspace, before.point, tree.point, failed=self._report.failed)
        pair = None
        if not self._everything:
            old = self._rules_of(base.epoch, before)
            pair = old, self._next_rules(record.epoch, tree, old, needs_other_rules(changes))
        step = Transition(tree, changes, pair, self._report)
        sending = step.commands(importer, base_name)
        importer.commit(mark, author, text, parent_name, base_name, sending)

    def _tree(self, epoch: int) -> Tree:
        record = self._states.checkpoint(epoch)
        return Tree(self._workspace, Point("", self._states.lineage(epoch), record))

    def _rules_of(self, epoch: int, tree: Tree) -> Rules:
        found = self._rules.get(epoch)
        if found is None:
            found = Rules(tree, self._git.surroundings)
        self._keep(epoch, found)
        return found

    def _next_rules(self, epoch: int, tree: Tree, old: Rules, other: bool) -> Rules:
        if other:
            return self._rules_of(epoch, tree)
        old.tree = tree
        self._keep(epoch, old)
        return old

    def _keep(self, epoch: int, rules: Rules) -> None:
        self._rules[epoch] = rules
        self._rules.move_to_end(epoch)
        while len(self._rules) > _RULES_KEPT:
            _, oldest = self._rules.popitem(last=False)
            if oldest not in self._rules.values():
                oldest.__exit__(None, None, None)

    # -- references -----------------------------------------------------------------------------

    def settle(self) -> str:
        """See that the branch is on the line of the present state; the commit it points to."""
        self._move_references()
        tip = self._references.get(self._branch)
        return tip.commit if tip is not None else ""

    def _move_references(self) -> None:
        """All at once, and only if they are as they were."""
        wanted = {}
        tip = self._newest_on_line()
        if tip is not None:
            wanted[self._branch] = tip
        for epoch in self._leaves:
            if not self._line.visible(epoch):
                wanted[self._sides + self._known[epoch].checkpoint] = self._known[epoch]
        importing = self._importing
        there = self._git.succeeds("rev-parse", "--verify", "--quiet", importing)
        lines = [f"delete {importing}\n"] if there else []
        for name, made in wanted.items():
            old = self._references.get(name)
            if old is None:
                lines.append(f"create {name} {made.commit}\n")
            elif old.commit != made.commit:
                lines.append(f"update {name} {made.commit} {old.commit}\n")
        for name, old in self._references.items():
            if name not in wanted and old.store == self._store:
                lines.append(f"delete {name} {old.commit}\n")
        if lines:
            self._git.run("update-ref", "-m", "cowfs git export", "--stdin", stdin=_bytes(lines))
        self._references = dict(wanted)

    def _newest_on_line(self) -> Exported | None:
        for every in (False, True):
            if every:
                self._know_all()
            on_line = [epoch for epoch in self._known if self._line.visible(epoch)]
            if on_line and (every or self._surely_newest(max(on_line))):
                return self._known[max(on_line)]
        return None

    def _surely_newest(self, epoch: int) -> bool:
        """Whether no other export can be newer on the line of the present state."""
        return self._all_known or epoch == max(self._known)


def _bytes(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "surrogateescape")
