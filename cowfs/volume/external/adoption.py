"""Taking over changes from outside: the epoch that they get, and who is told of them.

The open epoch is sealed before them if it has changes, and after them as soon as the workspace
changes something itself (`View.begin`) or asks for a checkpoint. So `log` shows them, and they can
be restored away. Only a restore of paths, which must be one epoch, is not interrupted.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cowfs.format import keys
from cowfs.volume import history
from cowfs.volume.base import BaseEntry
from cowfs.volume.inode import Inode

if TYPE_CHECKING:
    from cowfs.volume.view import View
    from cowfs.volume.volume import Volume

KIND = "external"
"""Of the checkpoints before and after what was adopted."""
EPOCH_KEY = b"external"
"""In the table `meta`: the open epoch, while all that it has was adopted from outside."""


class Adoption:
    """What all who adopt something share.

    adopting: the open epoch has such changes and no others.
    stale: inodes that were changed, of which the kernel was not told yet.
    on_adopted: told the inodes that the kernel knows and that were changed.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.stale: set[int] = set()
        self.adopting = volume.reader.get("meta", EPOCH_KEY) == keys.pack_id(volume.main.head)
        self.on_adopted: Callable[[set[int]], None] = lambda inodes: None

    def begin(self, view: View) -> None:
        """Something is about to be adopted."""
        if self.adopting or view.editing:
            return
        if self._volume.epoch_changed:
            history.seal(
                self._volume, history.Author(), kind=KIND, message="before external changes"
            )
        self.adopting = True
        self._volume.extra.put("meta", EPOCH_KEY, keys.pack_id(view.head))

    def settle(self) -> None:
        """Seal the epoch of adopted changes, if the open one is that."""
        if not self.adopting:
            return
        self.adopting = False
        self._volume.extra.delete("meta", EPOCH_KEY)
        history.seal(self._volume, history.Author(), kind=KIND, message="external changes")

    def take_attributes(self, view: View, child: Inode, entry: BaseEntry) -> None:
        """Give an inode the attributes that its base file has now."""
        st = entry.st
        child.mode, child.uid, child.gid = st.st_mode, st.st_uid, st.st_gid
        child.ctime = st.st_ctime_ns
        xattrs = child.xattrs if child.xattrs is not None else view.snapshot.xattrs(child.ino)
        child.xattrs = dict(entry.xattrs)
        for name in xattrs.keys() - entry.xattrs.keys():
            view.xattrs[(child.ino, name)] = None
        for name, value in entry.xattrs.items():
            if xattrs.get(name) != value:
                view.xattrs[(child.ino, name)] = value
        self.stale.add(child.ino)
        view.mark(child)

    def tell(self) -> None:
        """The kernel may know what changed."""
        stale, self.stale = self.stale, set()
        view = self._volume.main
        known = {ino for ino in stale if view.in_kernel(ino)}
        if known:
            self.on_adopted(known)

    def report(self, what: str, path: bytes, name: bytes, detail: str) -> None:
        """Say of a name in a directory of the base what is the matter with it."""
        self._volume.problem(what, joined(path, name), detail)

    def adopted(self, code: int, path: bytes, child: Inode, detail: str) -> None:
        """Say what was taken over, here and in the audit log; `code` as there. The path is that in
        the base, which mostly is that in the workspace."""
        self._volume.problem("external", path, detail)
        self._volume.audit.adopted(code, path, child)


def joined(directory: bytes, name: bytes) -> bytes:
    """The path of a name in a directory; b"" is the top."""
    return directory + b"/" + name if directory else name
