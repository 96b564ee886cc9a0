"""Store files in which bytes were changed at random, and what becomes of who opens them.

    python -m tests.hostile.stores --count 10000

Each store is looked at by processes of their own, since LMDB trusts its file: one verifies it, one
uses it as a daemon does, one searches its history, one goes on with an agent's session. A process
must end with a result or an error of ours: not by a signal, not with another exception, not never.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cowfs.agents.base import Source
from cowfs.errors import CowfsError, UnknownPathError
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import SessionRecord
from cowfs.service.finding.names import Finder, Pattern
from cowfs.service.finding.pathlog import log_paths
from cowfs.service.finding.selection import Selection
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading as reading_sessions
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.retention import drop_unneeded
from cowfs.service.timeline import Timeline
from cowfs.service.workspace import reading
from cowfs.store.env import LmdbError
from cowfs.store.guard import must_be_safe
from cowfs.store.snapshot import Reader
from cowfs.volume.posix import PosixError
from tests.support.volumes import Rig
from tests.verify.sample import Sample, build

PAGE = 4096
_SECONDS = 30
_OK, _REFUSED, _BROKEN = 0, 10, 11
_LARGE = 1 << 20
_MOST_OPERATIONS = 2000
"""Names that are looked at: a cycle of directories is a tree without end to who follows paths."""


def damage(path: Path, chance: random.Random) -> str:
    """Change a file; says how."""
    data = bytearray(path.read_bytes())
    pages = len(data) // PAGE
    way = chance.choice(["bit", "byte", "field", "page", "swap", "cut", "many"])
    at = chance.randrange(pages) * PAGE + chance.choice([0, 10, 12, 16, 24, 40, 100, 4000])
    if way == "bit":
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
    elif way == "byte":
        data[at] = chance.randrange(256)
    elif way == "field":
        value = chance.choice([0, 1, pages - 1, pages, (1 << 63) - 1, (1 << 64) - 1])
        data[at : at + 8] = value.to_bytes(8, "little")
    elif way == "page":
        start = chance.randrange(pages) * PAGE
        data[start : start + PAGE] = chance.choice([bytes(PAGE), chance.randbytes(PAGE)])
    elif way == "swap":
        one, other = (chance.randrange(pages) * PAGE for _ in "12")
        first = bytes(data[one : one + PAGE])
        data[one : one + PAGE] = data[other : other + PAGE]
        data[other : other + PAGE] = first
    elif way == "cut":
        del data[chance.randrange(len(data)) :]
    else:
        for _ in range(50):
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)
    return f"{way} at {at}"


def use(sample: Sample) -> None:
    """What a daemon and its users do: look at everything, write, checkpoint, restore."""
    must_be_safe(sample.store, 0)
    rig = Rig(sample.store, sample.base)
    waiting = [b""]
    for _ in range(_MOST_OPERATIONS):
        if not waiting:
            break
        path = waiting.pop()
        with contextlib.suppress(PosixError):
            inode = rig.at(path)
            if inode.size < _LARGE:
                rig.facts(inode)
            else:
                rig.open(path).read(0, _LARGE)
            if inode.is_dir:
                waiting += [path + b"/" + name if path else name for name in rig.ls(path)]
    with contextlib.suppress(PosixError):
        rig.create(b"made", b"content")
    rig.checkpoint()
    with Reader(rig.volume.store) as reader:
        targets: list[CheckpointRecord] = all_checkpoints(reader)
    for target in targets[:4]:
        with contextlib.suppress(CowfsError):
            rig.restore(target)
    rig.finish(check=False)


def converse(sample: Sample) -> None:
    """As a daemon with an agent: read what sessions and checkpoints have, go on with a session,
    drop what nothing needs."""
    must_be_safe(sample.store, 0)
    rig = Rig(sample.store, sample.base)
    registry = Registry(rig.engine)
    with Reader(rig.volume.store) as reader:
        known = [registry.get(name) for name in ("s1", "s1/a1", "s9")]
        for key in list(reader.keys("context")):
            with contextlib.suppress(CowfsError):
                context = reading_sessions.context(reader, key.decode("ascii", "replace"))
                assert context is not None
                reading_sessions.transcript_path(reader, context)
                reading_sessions.conversation(reader, context)
        with contextlib.suppress(CowfsError):
            [reading_sessions.state(record) for record in reading_sessions.sessions(reader)]
    place = sample.store.parent / "said"
    place.write_bytes(b'{"type":"user"}\n' * 3)
    for record in known:
        source = Source("main", str(place), "lines")
        registry.capture(record or SessionRecord("s9", "claude"), [source])
        rig.checkpoint()
    drop_unneeded(rig.engine, registry, lambda: True)
    rig.finish(check=False)


def verify(sample: Sample) -> None:
    """As `cowfs verify`."""
    sample.verify()


def search(sample: Sample) -> None:
    """As `cowfs log`, `cowfs log PATH` and `cowfs find`."""
    must_be_safe(sample.store, 0)
    with reading(sample.store, None) as workspace:
        line = Timeline(workspace, lambda _: None)
        list(line.checkpoints())
        for path in (b"", b"src", b"src/main", b"docs/old", b"fresh"):
            with contextlib.suppress(UnknownPathError):
                log_paths(line, [path], 50, Selection(), lambda _: None)
        for name in (b"util", b"*", b"src/*"):
            list(Finder(workspace, line.states).find(Pattern(name)))


def outcome(fn: Callable[[Sample], None], sample: Sample) -> str:
    """What becomes of a process that does it: "done", "refused", or what is wrong with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS)
        code, text = _OK, ""
        try:
            fn(sample)
        except (CowfsError, PosixError, LmdbError) as error:
            # Handlers answer LMDB's errors with EIO, commands with COWFS_STORE_DAMAGED.
            code, text = _REFUSED, str(error)
        except BaseException:
            code, text = _BROKEN, traceback.format_exc()[-1500:]
        os.write(writing, text.encode("utf-8", "replace")[:60_000])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.WEXITSTATUS(status)
    return {_OK: "done", _REFUSED: "refused"}.get(code, text)


def run(top: Path, seeds: range) -> tuple[Counter[str], list[str]]:
    """(how many ended how, what was wrong) of stores that are damaged by these seeds."""
    sample = build(top / "sound")
    counts: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        for fn in (verify, use, search, converse):
            place = top / "damaged"
            damaged = sample.copy(place)
            how = damage(place / "data.mdb", random.Random(seed))
            found = outcome(fn, damaged)
            counts[f"{fn.__name__}: {found.splitlines()[-1]}"] += 1
            if found not in ("done", "refused"):
                wrong.append(f"seed {seed} ({how}), {fn.__name__}: {found}")
            shutil.rmtree(place)
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as top:
        (Path(top) / "sound").mkdir()
        counts, wrong = run(Path(top), range(options.first, options.first + options.count))
    print("\n".join(wrong))
    print("\n".join(f"{count:6} {how}" for how, count in counts.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
