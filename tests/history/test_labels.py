"""Labels are paths below `.cowfs/checkpoints`: none is a directory of another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cowfs.errors import LabelBesideError, LabelInUseError
from cowfs.service.selectors import resolve
from cowfs.volume import history
from tests.support.volumes import AUTHOR, Rig


@pytest.fixture
def rig(open_rig: Callable[[], Rig]) -> Rig:
    return open_rig()


def test_a_label_is_no_directory_of_another(rig: Rig) -> None:
    """As names of git's branches (git-check-ref-format(1): "a/b" cannot be beside "a")."""
    made = rig.checkpoint(label="a/b/c")
    before = rig.engine.volume.reader.count("checkpoint")
    for label in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
        with pytest.raises(LabelBesideError, match="'a/b/c'") as error:
            rig.checkpoint(label=label)
        assert error.value.details["checkpoint"] == made.id[:8]
    with pytest.raises(LabelInUseError):
        rig.checkpoint(label="a/b/c")
    assert rig.engine.volume.reader.count("checkpoint") == before
    for label in ("a/b/d", "a/b/cd", "a/b/c.d", "ab", "b", "A"):
        rig.checkpoint(label=label)


def test_a_store_that_has_both(rig: Rig) -> None:
    """Earlier versions made such labels: both can be named as before."""
    one = rig.checkpoint(label="a")
    sealed = rig.engine.at_one_moment(
        lambda: history.seal(rig.engine.volume, AUTHOR, kind="manual", label="a/b")
    )
    rig.engine.volume.writer.wait(sealed.group)
    rig.engine.call(rig.engine.volume.reap)
    reader = rig.engine.volume.reader
    for label, wanted in (("a", one.id), ("a/b", sealed.checkpoint.id)):
        found = resolve(reader, reader.lineage(one.epoch), label, 0).checkpoint
        assert found is not None
        assert found.id == wanted
    with pytest.raises(LabelBesideError, match="'a'"):
        rig.checkpoint(label="a/c")
    with pytest.raises(LabelBesideError, match="'a'"):
        rig.checkpoint(label="a/b/c")
