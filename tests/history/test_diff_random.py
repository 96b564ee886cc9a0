"""Random edits between two checkpoints: the diff must be what a comparison of the trees finds."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.errors import UnknownPathError
from cowfs.format import records
from cowfs.service.diff import diff
from cowfs.service.restore import restore
from cowfs.volume.posix import PosixError
from tests.history.states import (
    check_changes,
    history,
    live_state,
    replayed,
    tree_state,
)
from tests.support.volumes import AUTHOR, Rig, usable

NAMES = [b"a", b"b"]
PATHS = [
    b"/".join(parts) for depth in (1, 2, 3) for parts in itertools.product(NAMES, repeat=depth)
]
PATHS += [b"c\xff", b"c\xff/a", b"a/c\xff"]
CONTENTS = [b"", b"one\n", b"two\n", b"one\n" * 30000, bytes(70000) + b"end"]

paths = st.sampled_from(PATHS)
contents = st.sampled_from(CONTENTS)
edits = st.one_of(
    st.tuples(st.just("save"), paths, contents),
    st.tuples(st.just("replace"), paths, contents),
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("truncate"), paths, st.sampled_from([0, 2, 65536, 70001])),
    st.tuples(st.just("mkdir"), paths, st.none()),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("exchange"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("symlink"), paths, st.sampled_from([b"x", b"y"])),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o600, 0o755])),
    st.tuples(st.just("xattr"), paths, st.sampled_from([b"1", b"2"])),
    st.tuples(st.just("checkpoint"), st.none(), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 5), st.none()),
    st.tuples(st.just("restore path"), paths, st.integers(0, 5)),
)

Edit = tuple[Any, Any, Any]
EXPECTED = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EINVAL,
    errno.EPERM,
}


@contextlib.contextmanager
def filled(*, check: bool = True) -> Iterator[Rig]:
    """A workspace of its own for one example; check: verify it at the end."""
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    try:
        base = top / "base"
        base.mkdir()
        fill(base)
        rig = Rig(top / "store", base)
        try:
            yield rig
        finally:
            rig.finish(check=check)
    finally:
        shutil.rmtree(top)


def fill(base: Path) -> None:
    """A base directory with something at each level."""
    for directory in ("a", "a/a", "a/b", "b", "b/a"):
        (base / directory).mkdir()
    for number, file in enumerate(("a/a/a", "a/a/b", "a/b/a", "b/a/b", "b/b", "a/plain")):
        (base / file).write_bytes(b"base %d\n" % number * (1 + 30000 * (number % 2)))
    (base / "b/b").chmod(0o755)
    (base / "a/link").symlink_to("plain")


def exists(rig: Rig, path: bytes) -> bool:
    """Whether all components of a path are there."""
    parts = path.split(b"/")
    return all(
        (inode := rig.find(b"/".join(parts[:depth]))) is not None
        and (inode.is_dir or depth == len(parts))
        for depth in range(1, len(parts) + 1)
    )


def apply_edit(rig: Rig, made: list[records.CheckpointRecord], edit: Edit) -> None:
    """One edit; what the volume refuses changes nothing."""
    what, one, two = edit
    if what == "restore path":
        _edit(rig, made, what, one, two)
        return
    creating = what in ("save", "replace", "mkdir", "symlink")
    for path, new in ((one, creating), (two, what in ("rename", "link"))):
        if not isinstance(path, bytes) or (
            path is two and what not in ("rename", "exchange", "link")
        ):
            continue
        needed = path.rpartition(b"/")[0] if new else path
        if needed and not exists(rig, needed):
            return
        if needed and new and not rig.at(needed).is_dir:
            return
    try:
        _edit(rig, made, what, one, two)
    except PosixError as error:
        if error.errno not in EXPECTED:
            raise


def _edit(rig: Rig, made: list[records.CheckpointRecord], what: str, one: Any, two: Any) -> None:
    if what == "checkpoint":
        made.append(rig.checkpoint())
        return
    if what == "restore":
        made.append(rig.restore(made[one % len(made)]).rescue)
        return
    if what == "restore path":
        target = made[two % len(made)].id
        with contextlib.suppress(UnknownPathError):
            made.append(restore(rig.engine, AUTHOR, target, paths=[one]).rescue)
    elif what == "mkdir":
        rig.mkdir(one)
    elif what == "remove":
        rig.remove_tree(one)
    elif what == "truncate":
        if rig.at(one).is_file:
            rig.truncate(one, two)
    elif what == "chmod":
        rig.chmod(one, usable(two) if rig.at(one).is_dir else two)
    else:
        if what == "save":
            inode = rig.find(one)
            if inode is None or inode.is_file:
                rig.save(one, two)
        elif what == "replace":
            rig.create(one + b".new", two)
            try:
                rig.rename(one + b".new", one)
            except PosixError:
                rig.unlink(one + b".new")
                raise
        elif what == "write":
            if rig.at(one).is_file:
                rig.write(one, two[:100], 3)
        elif what == "rename":
            rig.rename(one, two)
        elif what == "exchange":
            rig.rename(one, two, 2)
        elif what == "link":
            rig.link(one, two)
        elif what == "symlink":
            rig.symlink(two, one)
        else:
            rig.setxattr(one, b"user.test", two)


@given(st.lists(edits, max_size=8), st.lists(edits, min_size=1, max_size=25), st.booleans())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_diff_is_what_a_comparison_of_both_trees_finds(
    first: list[Edit], second: list[Edit], reopen: bool
) -> None:
    with filled(check=False) as rig:
        made = [rig.checkpoint()]
        for edit in first:
            apply_edit(rig, made, edit)
        a = rig.checkpoint()
        made.append(a)
        if reopen:
            rig.reopen()
        for edit in second:
            apply_edit(rig, made, edit)
        b = rig.checkpoint()
        rig.close()
        with replayed(rig, rig.store.parent / "copy") as other:
            other.restore(a)
            old = live_state(other)
            other.restore(b)
            new = live_state(other)
        rig.start()
        with history(rig) as workspace:
            one, two = workspace.point(a.id), workspace.point(b.id)
            assert tree_state(workspace, one) == old[0]
            assert tree_state(workspace, two) == new[0]
            check_changes(old, new, diff(workspace, one, two))
            check_changes(new, old, diff(workspace, two, one))
            assert diff(workspace, two, workspace.point("@")) == []
