"""Makes `store.gz` and `states.json`: a store of version 1 of the format, with records of all
kinds, and what its states show.

It was run once, in a checkout of the last commit whose format was version 1
(6826e20): python -m tests.store.version_1.make DIRECTORY
"""

from __future__ import annotations

import gzip
import json
import os
import random
import stat
import sys
import tempfile
from pathlib import Path

from cowfs.service import sealing
from cowfs.service.repair import repair
from cowfs.service.sealing import Pace
from cowfs.service.workspace import reading
from cowfs.store.env import open_store
from tests.store.version_1.states import states
from tests.support.volumes import START, Rig

BLOCK = 65536
TEXT = b"".join(b"line %d of a text that is worth a delta\n" % n for n in range(60))


def main(target: Path) -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as scratch:
        store = build(Path(scratch))
        with reading(store, None) as workspace:
            told = states(workspace.reader)
        (target / "states.json").write_text(json.dumps(told, indent=1) + "\n")
        data = gzip.compress((store / "data.mdb").read_bytes(), 9, mtime=0)
        (target / "store.gz").write_bytes(data)
        print(len(data), "bytes,", len(told), "states")


def build(directory: Path) -> Path:
    """The store, after three lives; the last one was killed."""
    store, base = directory / "store", directory / "base"
    (base / "docs").mkdir(parents=True)
    (base / "unlisted").mkdir()
    (base / "docs" / "readme").write_bytes(TEXT + bytes(BLOCK) + b"the second block")
    (base / "docs" / "old").write_bytes(b"old")
    (base / "shared1").write_bytes(b"shared")
    os.link(base / "shared1", base / "shared2")
    os.symlink("docs/readme", base / "link")
    (base / "edited").write_bytes(b"before")
    rig = Rig(store, base)
    rig.tree()
    rig.mkdir(b"src")
    rig.mkdir(b"src/deep")
    rig.create(b"src/main", TEXT * 30)
    rig.link(b"src/main", b"src/alias")
    rig.create(b"src/util", b"util")
    rig.create(b"src/noise", random.Random(1).randbytes(2000))
    rig.create(b"fifo", mode=stat.S_IFIFO | 0o600)
    rig.create(b"device", mode=stat.S_IFCHR | 0o600, rdev=os.makedev(1, 3))
    rig.create(b"src/\xff\xfe not utf-8", b"\xff")
    rig.setxattr(b"src/main", b"user.a", b"1")
    rig.setxattr(b"src/main", b"user.empty", b"")
    one = rig.checkpoint("one", label="v1")
    rig.write(b"src/main", b"changed", 10)
    rig.write(b"src/noise", b"changed", 10)
    rig.write(b"docs/readme", b"written", 3)
    rig.truncate(b"src/alias", 3 * BLOCK)
    rig.write(b"src/alias", b"beyond a hole", 2 * BLOCK)
    rig.write(b"src/alias", bytes(BLOCK))
    rig.unlink(b"src/util")
    rig.rename(b"docs/old", b"src/old")
    rig.checkpoint("two")
    rig.create(b"three", TEXT[:1000])
    rig.restore_paths(START, [b"docs/readme"])
    rig.checkpoint("docs/readme as it was")
    rig.restore(one)
    rig.create(b"fresh", b"fresh" * 200)
    rig.create(b"to be damaged", TEXT[5:700])
    rig.undo()
    rig.redo()
    rig.volume.sync()
    sealing.seal(rig.engine, [], Pace(), lambda **_: None)
    rig.close()
    (base / "edited").write_bytes(b"edited outside")
    rig.reopen()
    rig.tree()
    rig.volume.sync()
    rig.checkpoint("after the edit")
    rig.close()
    lose_a_block(store)
    rig.reopen()
    handle = rig.open(rig_create_name(rig))
    rig.unlink(b"no name")
    handle.write(0, b"written without a name")
    rig.volume.sync()
    rig.crash()
    rig.finish(check=False)
    return store


def rig_create_name(rig: Rig) -> bytes:
    """A file that is unlinked while it is open."""
    rig.create(b"no name", b"x")
    return b"no name"


def lose_a_block(store: Path) -> None:
    """Damage a block of a file and have it marked as lost."""
    from cowfs.format import codec

    opened = open_store(store, writable=True)
    with opened.begin(write=True) as txn:
        digest = codec.block_hash(TEXT[5:700])
        txn.put(digest, b"\0\0\0\0\1x", db=opened.tables["block"])
    opened.close()
    repair(store, None, dry_run=False, progress=lambda *_: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
