"""Random work on a volume and on a model of POSIX, compared after every step.

Deterministic by default; `scripts/fuzz --kind volume` looks at more, and other, examples.
"""

from __future__ import annotations

import os
import random
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cowfs.errors import NothingToUndoError
from cowfs.format.records import Counts
from cowfs.store.group import TransactionGroup
from cowfs.store.writer import Writer
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, namespace, sealing
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.support.model import EXCHANGE, NOREPLACE, Image, Model, Node
from tests.support.searching import EXAMPLES, WITHOUT_LIMIT, parts, search
from tests.support.volumes import START, Facts, Handle, Rig, holes_of

pytestmark = WITHOUT_LIMIT
B = BLOCK_SIZE
_MAX_NODES = 24
_MAX_HANDLES = 6

# Something that exists is chosen by a number, so that examples shrink well. Most of the time one of
# a few: what is interesting needs several calls on the same thing.
picks = st.integers(0, 2) | st.integers(0, 1000)
names = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"\xff", b"\n", b"n" * 255])
offsets = st.sampled_from([0, 1, 3, B - 2, B - 1, B, B + 1, 2 * B - 1, 2 * B])
sizes = st.sampled_from([0, 1, 5, B - 1, B, B + 1])
modes = st.sampled_from([0o600, 0o644, 0o755, 0o2755, 0o4711])
kinds = st.sampled_from([stat.S_IFDIR, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO])
allocations = st.sampled_from(
    [0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]
)
rarely = st.sampled_from([False] * 9 + [True])
xattr_names = st.sampled_from([b"user.a", b"user.base"])


def make_base(base: Path) -> None:
    """What the examples start with. It is only read."""
    rng = random.Random(1)
    (base / "a" / "b" / "c").mkdir(parents=True)
    (base / "b").mkdir()
    (base / "a" / "a").write_bytes(rng.randbytes(B + 9))
    os.link(base / "a" / "a", base / "b" / "c")
    (base / "a" / "b" / "a").write_bytes(rng.randbytes(2 * B))
    (base / "c").write_bytes(b"small")
    os.symlink("a", base / "\udcff")
    os.setxattr(base / "c", "user.base", b"1")


def model_of(base: Path) -> Model:
    """A model that shows the base directory."""
    model = Model()
    nodes: dict[int, Node] = {}

    def fill(directory: Node, path: Path) -> None:
        for entry in sorted(path.iterdir()):
            status = entry.lstat()
            name = os.fsencode(entry.name)
            known = nodes.get(status.st_ino)
            if known is not None:
                model.link(known, directory, name)
                continue
            target = os.fsencode(os.readlink(entry)) if entry.is_symlink() else b""
            node = model.create(
                directory, name, status.st_mode, status.st_uid, status.st_gid, target=target
            )
            nodes[status.st_ino] = node
            if stat.S_ISREG(status.st_mode):
                node.data = bytearray(entry.read_bytes())
                for key in os.listxattr(entry):
                    node.xattrs[os.fsencode(key)] = os.getxattr(entry, key)
            elif stat.S_ISDIR(status.st_mode):
                fill(node, entry)

    status = base.stat()
    model.root.mode, model.root.uid, model.root.gid = status.st_mode, status.st_uid, status.st_gid
    fill(model.root, base)
    return model


@dataclass
class State:
    """A checkpoint. `facts`: what the volume showed, None when it was not looked at then."""

    id: str
    image: Image
    facts: dict[bytes, Facts] | None


@dataclass
class Durable:
    """What a crash leaves when `group` is the last one that was committed (None: it is)."""

    group: TransactionGroup | None
    image: Image
    inos: dict[int, int]


@dataclass
class Held:
    """Somebody's hold on a node: an open file (`handle`), or the kernel's reference."""

    inode: Inode
    node: Node
    handle: Handle | None


@dataclass
class Stacks:
    undo: list[State] = field(default_factory=list)
    redo: list[State] = field(default_factory=list)


class Slow:
    """A writer that may be behind: what it is given waits until somebody waits for it. So what a
    crash loses is what the example says, and not what the threads of this machine make of it."""

    def __init__(self, writer: Writer) -> None:
        self.waiting: list[TransactionGroup] = []
        self._submit, self._wait, self._close = writer.submit, writer.wait, writer.close
        self._writer = writer
        writer.submit = self.waiting.append  # type: ignore[method-assign, assignment]
        writer.wait = self.wait  # type: ignore[method-assign]
        writer.close = self.close  # type: ignore[method-assign]

    def hand_on(self, most: int) -> None:
        """Let the writer commit the first ones while the volume goes on."""
        for group in self.waiting[:most]:
            self._submit(group)
        del self.waiting[:most]

    def wait(self, group: TransactionGroup, timeout: float | None = None) -> None:
        self.hand_on(len(self.waiting))
        self._wait(group, timeout)

    def close(self) -> None:
        self.hand_on(len(self.waiting))
        self._close()

    def lose(self) -> list[TransactionGroup]:
        """A crash: what it has not begun with is lost, and what it has begun with is committed."""
        lost, self.waiting = self.waiting, []
        writer = self._writer
        with writer._changed:
            writer._changed.wait_for(lambda: not writer._queue)
        return lost


class VolumeMachine(RuleBasedStateMachine):
    """One volume and one model."""

    def __init__(self, base: Path, place: Path) -> None:
        super().__init__()
        self.rig = Rig(Path(tempfile.mkdtemp(dir=place)), base)
        self.slow = Slow(self.rig.volume.writer)
        self.model = model_of(base)
        self.states = [State(START, self.model.image(), None)]
        self.epoch = self.states[0].image
        self.stacks = Stacks()
        self.held: list[Held] = []
        self.inos: dict[int, int] = {}
        self.durable = [Durable(None, self.model.image(), {})]
        self.eager = True
        self.last = 0
        self.verified = False

    @initialize(eager=st.booleans(), verified=rarely)
    def choose(self, eager: bool, verified: bool) -> None:
        """Looking at everything after each step leaves nothing to be imported later."""
        self.eager, self.verified = eager, verified

    # -- choosing -------------------------------------------------------------------------------

    def path(self, pick: int, wanted: Callable[[Node], bool] = lambda node: True) -> bytes:
        """A path that exists, the last one and held ones first; b"" when none is wanted."""
        found = [path for path, node in self.model.walk() if wanted(node)]
        if not found:
            return b""
        order = {held.node.number: -1 for held in self.held}

        def rank(path: bytes) -> tuple[int, bytes]:
            number = self.node(path).number
            return -1 if number == self.last else order.get(number, 0) + 1, path

        found.sort(key=rank)
        path = found[pick % len(found)]
        self.last = self.node(path).number
        return path

    def node(self, path: bytes) -> Node:
        node = self.model.root
        for name in path.split(b"/") if path else ():
            node = node.children[name]
        return node

    def place(self, path: bytes) -> tuple[Node, bytes]:
        directory, _, name = path.rpartition(b"/")
        return self.node(directory), name

    def directory(self, pick: int) -> bytes:
        return self.path(pick, lambda node: node.is_dir)

    def file(self, pick: int) -> bytes:
        return self.path(pick, lambda node: node.is_file)

    def both(self, expected: Callable[[], object], call: Callable[[], object]) -> bool:
        """A call has the same outcome in the model and in the volume; whether it succeeded."""
        wanted = got = 0
        try:
            expected()
        except OSError as error:
            wanted = error.errno or -1
        try:
            call()
        except PosixError as error:
            got = error.errno
        assert got == wanted, (os.strerror(got), os.strerror(wanted))
        return not wanted

    # -- names ----------------------------------------------------------------------------------

    @rule(where=picks, name=names, size=sizes, mode=modes)
    def create_file(self, where: int, name: bytes, size: int, mode: int) -> None:
        above = self.directory(where)
        if self._create(above, name, stat.S_IFREG | mode) and size:
            path = above + b"/" + name if above else name
            self.model.write(self.node(path), 0, b"c" * size)
            self.rig.write(path, b"c" * size)

    @rule(where=picks, name=names, kind=kinds, mode=modes, anywhere=rarely)
    def create_other(self, where: int, name: bytes, kind: int, mode: int, anywhere: bool) -> None:
        self._create(self.path(where) if anywhere else self.directory(where), name, kind | mode)

    def _create(self, above: bytes, name: bytes, mode: int) -> bool:
        if len(self.model.reachable()) >= _MAX_NODES:
            return False
        target = b"some/where" if stat.S_ISLNK(mode) else b""
        parent, rig = self.node(above), self.rig
        return self.both(
            lambda: self.model.create(parent, name, mode, 1, 2, target=target),
            lambda: namespace.create(rig.view, rig.at(above).ino, name, mode, 1, 2, target=target),
        )

    @rule(what=picks, where=picks, name=names)
    def link(self, what: int, where: int, name: bytes) -> None:
        path, above = self.path(what), self.directory(where)
        node, parent, rig = self.node(path), self.node(above), self.rig
        self.both(
            lambda: self.model.link(node, parent, name),
            lambda: namespace.link(rig.view, rig.at(path).ino, rig.at(above).ino, name),
        )

    @rule(what=picks, wrong=rarely)
    def remove(self, what: int, wrong: bool) -> None:
        """unlink or rmdir, rarely the wrong one."""
        path = self.path(what)
        if path:
            (parent, name), is_dir = self.place(path), self.node(path).is_dir
            if is_dir != wrong:
                self.both(lambda: self.model.rmdir(parent, name), lambda: self.rig.rmdir(path))
            else:
                self.both(lambda: self.model.unlink(parent, name), lambda: self.rig.unlink(path))

    @rule(what=picks, where=picks, name=names, flags=st.sampled_from([0, 0, NOREPLACE, EXCHANGE]))
    def rename(self, what: int, where: int, name: bytes, flags: int) -> None:
        path, above = self.path(what), self.directory(where)
        self._rename(path, above + b"/" + name if above else name, flags)

    @rule(what=picks, other=picks, flags=st.sampled_from([0, EXCHANGE]))
    def rename_over(self, what: int, other: int, flags: int) -> None:
        self._rename(self.path(what), self.path(other), flags)

    def _rename(self, path: bytes, new: bytes, flags: int) -> None:
        if not path or not new:
            return
        if not flags and path.startswith(new + b"/"):
            return  # the kernel answers this without asking
        source, target = self.place(path), self.place(new)
        self.both(
            lambda: self.model.rename(*source, *target, flags),
            lambda: self.rig.rename(path, new, flags),
        )

    # -- content and attributes -----------------------------------------------------------------

    @rule(what=picks, offset=offsets, size=sizes, seed=st.integers(0, 3))
    def write(self, what: int, offset: int, size: int, seed: int) -> None:
        path = self.file(what)
        if path and size:
            content = random.Random(seed).randbytes(size) if seed else bytes(size)
            self.model.write(self.node(path), offset, content)
            self.rig.write(path, content, offset)

    @rule(what=picks, size=offsets)
    def truncate(self, what: int, size: int) -> None:
        path = self.file(what)
        if path:
            self._truncate(path, size)

    def _truncate(self, path: bytes, size: int) -> None:
        node = self.node(path)
        if size != node.size:
            node.times = None
        self.model.truncate(node, size)
        self.rig.truncate(path, size)

    @rule(what=picks, down=offsets, up=offsets)
    def cut(self, what: int, down: int, up: int) -> None:
        """Truncate, then grow: zeros, never old bytes."""
        path = self.file(what)
        if path:
            self._truncate(path, down)
            self._truncate(path, up)

    @rule(what=picks, mode=allocations, offset=offsets, size=sizes)
    def allocate(self, what: int, mode: int, offset: int, size: int) -> None:
        path = self.file(what)
        if path and size:
            self._allocate(self.node(path), mode, offset, size)
            self.rig.allocate(path, mode, offset, size)

    def _allocate(self, node: Node, mode: int, offset: int, size: int) -> None:
        zero = bool(mode & (PUNCH_HOLE | ZERO_RANGE))
        self.model.allocate(node, offset, size, keep=bool(mode & KEEP_SIZE), zero=zero)

    @rule(what=picks, size=sizes)
    def save(self, what: int, size: int) -> None:
        """Truncate to nothing, then write."""
        path = self.file(what)
        if path:
            node, content = self.node(path), b"s" * size
            if node.size:
                node.times = None
            self.model.truncate(node, 0)
            self.model.write(node, 0, content)
            self.rig.save(path, content)

    @rule(what=picks, mode=modes)
    def chmod(self, what: int, mode: int) -> None:
        path = self.path(what)
        self.model.chmod(self.node(path), mode)
        self.rig.chmod(path, mode)

    @rule(what=picks, atime=st.integers(-(1 << 40), 1 << 62), mtime=st.integers(0, 9))
    def utimens(self, what: int, atime: int, mtime: int) -> None:
        path = self.path(what)
        self.node(path).times = atime, mtime
        attributes.set_attributes(self.rig.view, self.rig.at(path), atime=atime, mtime=mtime)

    @rule(what=picks, name=xattr_names, value=st.none() | st.binary(max_size=3))
    def xattr(self, what: int, name: bytes, value: bytes | None) -> None:
        """Set one, or with None remove it."""
        path = self.path(what)
        node, rig = self.node(path), self.rig
        if value is not None:
            node.xattrs[name] = value
            rig.setxattr(path, name, value)
            return
        self.both(
            lambda: self.model.remove_xattr(node, name),
            lambda: attributes.remove_xattr(rig.view, rig.at(path), name),
        )

    # -- open files and the kernel's references -------------------------------------------------

    @rule(what=picks, handle=st.booleans(), a_file=st.booleans())
    def hold(self, what: int, handle: bool, a_file: bool) -> None:
        self._hold(self.file(what) if a_file else self.path(what), handle)

    @rule(what=picks, size=sizes)
    def make_temporary(self, what: int, size: int) -> None:
        """Open a file, take its name away, and write."""
        path = self.file(what)
        if path:
            self._hold(path, True)
            parent, name = self.place(path)
            node = self.model.unlink(parent, name)
            inode = self.rig.unlink(path)
            held = self.held[-1]
            if held.node is node and held.handle is not None:
                assert held.inode is inode
                self.model.write(node, 0, b"t" * size)
                held.handle.write(0, b"t" * size)

    @rule(where=picks, mode=modes, size=sizes)
    def make_unnamed(self, where: int, mode: int, size: int) -> None:
        """O_TMPFILE."""
        above = self.directory(where)
        self._make_room()
        handle = self.rig.open_unnamed(above, stat.S_IFREG | mode, gid=2)
        node = self.model.create_unnamed(self.node(above), stat.S_IFREG | mode, 0, 2)
        self.model.write(node, 0, b"u" * size)
        if size:
            handle.write(0, b"u" * size)
        self.held.append(Held(handle.inode, node, handle))

    @precondition(lambda self: any(not held.node.nlink for held in self.held))
    @rule(which=picks, where=picks, name=names)
    def name_it(self, which: int, where: int, name: bytes) -> None:
        """Give a name to a file that has none: possible if it was made without."""
        found = [held for held in self.held if not held.node.nlink and not held.node.is_dir]
        if found:
            held, above = found[which % len(found)], self.directory(where)
            parent, rig = self.node(above), self.rig
            self.both(
                lambda: self.model.link(held.node, parent, name),
                lambda: namespace.link(rig.view, held.inode.ino, rig.at(above).ino, name),
            )

    def _make_room(self) -> None:
        if len(self.held) >= _MAX_HANDLES:
            self.let_go_of(self.held.pop(0))

    def _hold(self, path: bytes, handle: bool) -> None:
        self._make_room()
        if handle:
            opened = self.rig.open(path)
            self.held.append(Held(opened.inode, self.node(path), opened))
        else:
            inode = self.rig.at(path)
            inode.nlookup += 1
            self.held.append(Held(inode, self.node(path), None))

    @precondition(lambda self: self.held)
    @rule(which=picks)
    def let_go(self, which: int) -> None:
        self.let_go_of(self.held.pop(which % len(self.held)))

    def let_go_of(self, held: Held) -> None:
        if held.handle is not None:
            held.handle.close()
        else:
            self.rig.view.forget(held.inode.ino, 1)

    def _open_file(self, which: int) -> Held | None:
        found = [held for held in self.held if held.handle is not None and held.node.is_file]
        return found[which % len(found)] if found else None

    @precondition(lambda self: self.held)
    @rule(which=picks, offset=offsets, size=sizes)
    def write_to_handle(self, which: int, offset: int, size: int) -> None:
        held = self._open_file(which)
        if held is not None and held.handle is not None and size:
            self.model.write(held.node, offset, b"h" * size)
            held.handle.write(offset, b"h" * size)

    @precondition(lambda self: self.held)
    @rule(which=picks, size=offsets)
    def truncate_handle(self, which: int, size: int) -> None:
        held = self._open_file(which)
        if held is not None and held.handle is not None:
            if size != held.node.size:
                held.node.times = None
            self.model.truncate(held.node, size)
            held.handle.truncate(size)

    @precondition(lambda self: self.held)
    @rule(which=picks, mode=allocations, offset=offsets, size=sizes)
    def allocate_handle(self, which: int, mode: int, offset: int, size: int) -> None:
        held = self._open_file(which)
        if held is not None and held.handle is not None and size:
            self._allocate(held.node, mode, offset, size)
            held.handle.allocate(mode, offset, size)

    # -- the store ------------------------------------------------------------------------------

    @rule(at_once=st.booleans())
    def quiesce(self, at_once: bool) -> None:
        """Hand what changed to the writer, and go on while it is, or waits to be, committed."""
        group = self.rig.volume.quiesce()
        if group is not None:
            self.durable.append(Durable(group, self.model.image(), dict(self.inos)))
        if at_once:
            self.slow.hand_on(len(self.slow.waiting))

    @rule(most=st.integers(1, 3))
    def hand_on(self, most: int) -> None:
        """The writer has time for something that waits."""
        self.slow.hand_on(most)

    @rule()
    def reap(self) -> None:
        self.rig.volume.reap()

    @rule(evict=st.booleans())
    def sync(self, evict: bool) -> None:
        self.rig.volume.sync()
        if evict:
            self.rig.evict()
        self._committed()

    @rule(most=st.integers(1, 4), at_once=st.integers(1, 8))
    def shrink(self, most: int, at_once: int) -> None:
        """Take out of memory what need not be there. Nothing is to be seen of it."""
        for _ in range(8):
            self.rig.view.shrink(most, at_once)
        for held in self.held:
            assert held.handle is not None or self.rig.view.in_kernel(held.inode.ino)

    def _committed(self) -> None:
        self.durable = [Durable(None, self.model.image(), dict(self.inos))]

    @rule(what=picks)
    def seal(self, what: int) -> None:
        """Take what a base file has into the store. Nothing is to be seen of it."""
        path = self.file(what)
        if path and self.rig.at(path).base_size:
            sealing.seal(self.rig.view, self.rig.at(path).content)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """Another life. After a crash what was not committed never happened: a tail, or nothing."""
        if crash:
            lost = self.slow.lose()
            self.rig.crash()
            left = next(d for d in reversed(self.durable) if d.group not in lost)
            self.model.restore(left.image)
            self.inos = dict(left.inos)
            self.durable = [Durable(None, left.image, left.inos)]
        else:
            self.rig.close()
            self._committed()
        self.held = []
        self._start()
        if self.eager:
            self.compare()

    def _start(self) -> None:
        self.rig.start()
        self.slow = Slow(self.rig.volume.writer)

    # -- history --------------------------------------------------------------------------------

    def _look(self) -> dict[bytes, Facts] | None:
        """Everything that the volume shows, when this example looks at everything."""
        return self.rig.tree() if self.eager else None

    def _check_counts(self, counts: Counts) -> None:
        now = {node.number for node in self.model.reachable()}
        then = self.epoch.nodes.keys()
        # A new file that was renamed over an old one counts as a modification of that.
        saved = len(now - then) - counts.created
        assert saved == len(then - now) - counts.deleted
        assert 0 <= saved <= counts.modified

    @rule()
    def checkpoint(self) -> None:
        facts = self._look()
        record = self.rig.checkpoint()
        self._check_counts(record.counts)
        self.states.append(State(record.id, self.model.image(), facts))
        self.epoch = self.states[-1].image
        self._committed()

    @rule(which=picks)
    def restore(self, which: int) -> None:
        target = self.states[-1 - which % len(self.states)]
        before = self._before()
        restored = self.rig.restore(target.id)
        before.id = restored.rescue.id
        self._check_counts(restored.rescue.counts)
        self.stacks.undo.append(before)
        self.stacks.redo = []
        self._arrive(target)

    @rule(redo=st.booleans())
    def undo(self, redo: bool) -> None:
        call = self.rig.redo if redo else self.rig.undo
        source, other = self.stacks.undo, self.stacks.redo
        if redo:
            source, other = other, source
        before = self._before()
        if not source:
            with pytest.raises(NothingToUndoError):
                call()
            return
        before.id = call().rescue.id
        other.append(before)
        self._arrive(source.pop())

    def _before(self) -> State:
        return State("", self.model.image(), self._look())

    def _arrive(self, target: State) -> None:
        """The volume must show a state as it was, to the nanosecond."""
        self.states.append(target)
        self.model.restore(target.image)
        self.epoch = target.image
        self._committed()
        if target.facts is not None:
            assert self.rig.tree() == target.facts
        self.compare()

    # -- comparing ------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        if self.eager:
            self.compare()
        self.compare_held()

    def compare(self) -> None:
        """The whole tree is what the model says."""
        paths = self.rig.paths()
        wanted = dict(self.model.walk())
        assert paths.keys() == wanted.keys()
        for path, node in wanted.items():
            inode = paths[path]
            assert self.inos.setdefault(node.number, inode.ino) == inode.ino, path
            check_inode(self.rig, inode, node)

    def compare_held(self) -> None:
        """What is held by inode is what the model says, with and without a name."""
        for held in self.held:
            if held.handle is None:  # the object may have left the cache since
                held.inode = self.rig.view.inode(held.inode.ino)
            assert self.rig.view.inodes.get(held.inode.ino) is held.inode
            check_inode(self.rig, held.inode, held.node)
            if held.node.is_dir:
                names = {name for name, _ in namespace.entries(self.rig.view, held.inode.ino)}
                assert names == held.node.children.keys()
                if held.node.parent is not None and held.node.nlink:
                    above = self.inos.get(held.node.parent.number)
                    assert above in (None, self.rig.view.parent_of(held.inode))

    def teardown(self) -> None:
        """At the end the store must be consistent, and show the same in another life."""
        rig = self.rig
        try:
            if rig.is_open:
                rig.close()
                self._start()
                self.held = []
                self.compare()
        finally:
            rig.finish(check=self.verified or EXAMPLES > 0)


def check_inode(rig: Rig, inode: Inode, node: Node) -> None:
    facts = rig.facts(inode)
    content = node.target if stat.S_ISLNK(node.mode) else bytes(node.data)
    got = (facts.mode, facts.nlink, facts.uid, facts.gid, facts.xattrs)
    assert got == (node.mode, node.nlink, node.uid, node.gid, node.xattrs)
    assert facts.content == content
    if node.is_file:
        for start, end in holes_of(rig.view, inode):
            assert not any(content[start:end])
    if not node.is_dir:
        assert facts.size == node.size
    if node.times is not None:
        assert (facts.atime, facts.mtime) == node.times


@pytest.mark.parametrize("part", parts(8))
def test_a_volume_behaves_as_posix_says(base: Path, fast_path: Path, part: int) -> None:
    make_base(base)
    search(VolumeMachine, base, fast_path, examples=50, steps=50, part=part)
