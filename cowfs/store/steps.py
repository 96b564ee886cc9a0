"""Named places in everything that changes the store or the base, where a crash test ends the
process (tests/crash).

A kill at a random moment seldom meets the narrow places between two system calls. So these have
names, and `arm` chooses one: the process that reaches it for the given time sends itself SIGKILL.
Not armed, which is always outside tests, `reached` is one look at a module variable.

Threading: `arm` before other threads start; `reached` from any thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

STEPS = (
    # store/env.py: a new store
    "create.begin",
    "create.opened",
    "create.committed",
    "create.named",
    # store/upgrade.py: a store of an older version
    "upgrade.begin",
    "upgrade.opened",
    "upgrade.copied",
    "upgrade.compared",
    "upgrade.kept",
    "upgrade.locks-named",
    "upgrade.named",
    "upgrade.done",
    # store/compaction.py
    "compact.begin",
    "compact.opened",
    "compact.copied",
    "compact.compared",
    "compact.locks-named",
    "compact.named",
    "compact.done",
    # service/shrinking.py, store/holes.py: room of free pages that is given back
    "holes.begin",
    "holes.punched",
    "holes.done",
    # volume/volume.py: a transaction group was frozen, the writer does not have it yet
    "group.frozen",
    # store/writer.py: one LMDB transaction. Between before-sync and after-sync LMDB writes the
    # pages, syncs, and writes the meta page.
    "commit.begin",
    "commit.group",
    "commit.before-sync",
    "commit.after-sync",
    "commit.told",
    # service/checkpoint.py
    "checkpoint.begin",
    "checkpoint.sealed",
    "checkpoint.durable",
    # volume/history.py, service/restore.py: of everything
    "restore.begin",
    "restore.submitted",
    "restore.durable",
    "restore.entered",
    "restore.reloaded",
    "restore.told",
    # volume/partial.py: of some paths
    "restore-paths.rescued",
    "restore-paths.edited",
    "restore-paths.durable",
    # service/sessions/placing.py: a copy of a conversation, alone or with a restore
    "copy.begin",
    "copy.prepared",
    "copy.written",
    "copy.committed",
    "copy.linked",
    "copy.named",
    "copy.done",
    # service/apply.py: the frame of an apply
    "apply.begin",
    "apply.sealed",
    "apply.saved",
    "apply.marked",
    "apply.written",
    "apply.synced",
    "apply.recorded",
    # service/applying/executor.py, leaving.py: what is done to the base
    "apply.staging-made",
    "apply.before-take-away",
    "apply.staged",
    "apply.removed",
    "apply.before-placing",
    "apply.made",
    "apply.placed",
    "apply.before-rewrite",
    "apply.rewrite-made",
    "apply.rewrite-placed",
    "apply.rewritten",
    "apply.attributes-set",
    "apply.staging-removed",
    # volume/volume.py: the end of a life
    "close.begin",
    "close.committed",
    "close.done",
    # service/repair/rebuild.py: another file of what is sound in a damaged one
    "salvage.begin",
    "salvage.written",
    "salvage.repaired",
    "salvage.kept",
    "salvage.placed",
    "salvage.done",
    # service/collecting: garbage of states that are not kept any more
    "collect.begin",
    "collect.found",
    "collect.before-commit",
    "collect.taken",
    "collect.thinnable",
    "collect.before-thinning",
    "collect.thinned",
    "collect.before-sweep",
    "collect.swept",
    "collect.done",
    # daemon/process.py: the end of a mount
    "unmount.begin",
    "unmount.committed",
    "unmount.applied",
    "unmount.done",
)

_armed = ""
_left = 0
_lock = threading.Lock()
_action: Callable[[], None]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_action = _die


def arm(step: str, passes: int = 1, action: Callable[[], None] = _die) -> None:
    """Choose a step, "" for none: reached for the `passes`th time, `action` is done there."""
    global _armed, _left, _action
    if step and step not in STEPS:
        raise ValueError(f"there is no step {step!r}")
    _armed, _left, _action = step, passes, action


def reached(step: str) -> None:
    """The calling thread is at this step."""
    if _armed:
        _pass(step)


def _pass(step: str) -> None:
    global _left
    if step == _armed:
        with _lock:
            _left -= 1
            due = _left == 0
        if due:
            _action()
