"""An apply that is interrupted at a step: the next life finishes it, and the base is exactly what
the workspace shows, times included, so that nothing in it is taken for a change from outside."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from cowfs.daemon.process import finish_apply
from cowfs.service.apply import apply
from cowfs.store import steps
from tests.crash.kills import base_tree
from tests.crash.local import Life, make_base
from tests.crash.states import first_state
from tests.crash.workload import plan
from tests.support.volumes import AUTHOR, Rig

APPLY_STEPS = [step for step in steps.STEPS if step.startswith("apply.")]
PASSES = 3


class StoppedError(BaseException):
    """Instead of the death of the process."""


def _interrupt() -> None:
    raise StoppedError


def _change(rig: Rig) -> None:
    """Something of every kind that an apply does."""
    rig.write(b"d/e/f", b"rewritten", 100)
    rig.write(b"still/below/file", b"in a directory where nothing else happens")
    rig.save(b"d/c", b"rewritten, with two names")
    rig.save(b"p/q/b~", b"saved by an editor")
    rig.rename(b"p/q/b~", b"p/q/b")
    rig.rename(b"p/a", b"d/e/moved")
    rig.mkdir(b"new")
    rig.mkdir(b"new/below")
    rig.create(b"new/below/file", b"x" * 70_000)
    rig.link(b"new/below/file", b"d/other name")
    rig.symlink(b"nowhere", b"new/link")
    rig.remove_tree(b"gone")
    rig.rename(b"moving", b"new/moved")
    rig.rename(b"only moved", b"new/first name")
    rig.link(b"new/first name", b"d/second name")
    rig.chmod(b"top", stat.S_IFREG | 0o600)
    rig.rename(b"pair/one", b"new/one of two")
    rig.chmod(b"pair/two", stat.S_IFREG | 0o640)
    rig.rename(b"pair/three", b"d/three")
    rig.rename(b"pair/four", b"new/four")
    rig.chmod(b"d/three", stat.S_IFREG | 0o604)
    rig.link(b"one name", b"pair/second name")
    rig.chmod(b"one name", stat.S_IFREG | 0o606)


def _apply_interrupted(rig: Rig, step: str, passes: int) -> None:
    """An apply that ends with its process, if it comes to that step so often."""
    steps.arm(step, passes, _interrupt)
    try:
        apply(rig.engine, AUTHOR, lambda **_: None)
    except StoppedError:
        pass
    finally:
        steps.arm("")
    rig.crash()


def _facts(path: Path) -> dict[bytes, tuple[object, ...]]:
    out: dict[bytes, tuple[object, ...]] = {}
    for top, directories, files in os.walk(path):
        for name in [*directories, *files, "."]:
            at = Path(top) / name
            st = at.lstat()
            content = at.read_bytes() if stat.S_ISREG(st.st_mode) else b""
            relative = os.fsencode(os.path.relpath(at, path))
            out[b"" if relative == b"." else relative] = (st.st_mode, st.st_mtime_ns, content)
    return out


@pytest.mark.parametrize("step", APPLY_STEPS)
def test_an_interrupted_apply_is_finished(tmp_path: Path, fast_path: Path, step: str) -> None:
    for passes in range(1, PASSES + 1):
        base = tmp_path / f"base{passes}"
        make_base(base)
        (base / "only moved").write_bytes(b"gets two names")
        (base / "pair").mkdir()
        for name, other in (("one", "two"), ("three", "four")):
            (base / "pair" / name).write_bytes(b"has two names: " + name.encode())
            os.link(base / "pair" / name, base / "pair" / other)
        (base / "one name").write_bytes(b"gets another one and another mode")
        for directory in ("gone", "moving", "still"):
            (base / directory / "below").mkdir(parents=True)
            (base / directory / "below" / "file").write_bytes(b"from the base")
        rig = Rig(fast_path / f"store{passes}", base)
        rig.tree()
        rig.checkpoint()
        _change(rig)
        right = rig.tree()
        _apply_interrupted(rig, step, passes)
        rig.start()
        finish_apply(rig.volume)
        if step not in ("apply.begin", "apply.sealed", "apply.saved"):
            assert _facts(base) == {
                path: (facts.mode, facts.mtime, facts.content if facts.mode >> 12 == 8 else b"")
                for path, facts in right.items()
            }
        rig.reopen()
        found = rig.tree()
        assert {path: f.content for path, f in found.items()} == {
            path: f.content for path, f in right.items()
        }
        assert rig.problems() == []
        rig.finish()


@pytest.mark.parametrize("seed", range(60))
def test_an_apply_of_anything_is_finished(fast_path: Path, seed: int) -> None:
    """Interrupted somewhere, after a life of calls chosen at random: nothing is reported, nothing
    is left beside the tree, and the next apply finds nothing to do."""
    rng = random.Random(seed)
    base = fast_path / "base"
    make_base(base)
    life = Life(fast_path / "store", base)
    ids = life.found().ids
    for call in plan(first_state(base_tree(base)), seed, rng.randrange(3, 40)):
        life.do(call, ids)
    _apply_interrupted(life, rng.choice(APPLY_STEPS), rng.choice([1, 1, 2, 3, 5, 8]))
    life.start()  # fails if anything is reported
    apply(life.engine, AUTHOR, lambda **_: None)
    found = life.found()
    assert found.base == found.view
    life.finish()
