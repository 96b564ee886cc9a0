"""The demo itself: mount, work, checkpoint, ruin, restore, and proof that all is back."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from _demo import changes, listing, project
from _demo.changes import Targets, Tools, Touched
from _demo.cowfs import Cowfs, is_mounted
from _demo.listing import ALL_FIELDS, PORTABLE_FIELDS, Listing
from _demo.terminal import DemoError, Report, Step, printable

_DESCRIPTION = """\
Runs cowfs' main job on a real project and proves that it worked.

It mounts the project, works on it with real tools, makes checkpoints, ruins it with rm -rf,
restores it, and compares what is back with `diff -r` against a copy made by `cp -a`, and with
listings (SHA-256, types, modes, owners, sizes, times, links, extended attributes, inode numbers)
made without cowfs. Everything happens in a temporary directory, which is removed afterwards.
"""

_EPILOG = """\
examples:
  scripts/demo                    a project from PyPI, some 3,700 files
  scripts/demo ~/src/my-project   a copy of your own; the original is only read
  scripts/demo --keep             leave the directory there, to look around
  TMPDIR=/mnt/big scripts/demo    work somewhere else

exit code: 0 when all checks have passed, 1 otherwise
"""


@dataclass
class Demo:
    """The steps, and what they hand on to each other."""

    work: Path
    report: Report
    cowfs: Cowfs
    tools: Tools
    listings: dict[str, Listing] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    git_status: str = ""

    @property
    def mount(self) -> Path:
        """The project's directory, over which cowfs is mounted."""
        return self.cowfs.project

    @property
    def reference(self) -> Path:
        """The copy that `cp -a` makes at the second checkpoint."""
        return self.work / "reference"

    def run(self) -> None:
        """All steps, in order."""
        step_of = self.report.step
        with step_of("mount") as step:
            self.cowfs.mount(step)
            step.note = "in place, nothing is copied"
        with step_of("git init, add, commit") as step:
            self.tools.git(step, "init", "-q")
            self.tools.git(step, "add", "-A")
            self.tools.git(step, "commit", "-q", "--allow-empty", "-m", "The project as it came")
        with step_of("checkpoint 1") as step:
            self.checkpoint(step, "one", "as it came")
        self.record("one")
        with step_of("changes with real tools") as step:
            targets = Targets(self.mount, self.listings["one"])
            touched = changes.make(step, self.tools, targets)
            self.make_step_note(step)
        with step_of("checkpoint 2") as step:
            self.checkpoint(step, "two", "after the changes")
        self.record("two")
        self.git_status = self.tools.git(Step(0, ""), "status", "--short")
        self.copy_reference()
        with step_of("what changed: diff 1 to 2") as step:
            self.show_diff(step)
        with self.open_file(touched) as check_open_file:
            with step_of("ruin: rm -rf of everything") as step:
                self.ruin(step)
            with step_of("restore checkpoint 2") as step:
                self.cowfs(step, "restore", self.checkpoints["two"])
            self.expect("two", "restored")
            self.expect_reference()
            check_open_file()
        self.undo_and_redo()
        self.restore_older(touched)
        with step_of("verify the store") as step:
            answer = self.cowfs(step, "verify")
            self.report.check(
                "verify found no problem", [str(problem) for problem in answer["problems"]]
            )
        with step_of("unmount, which applies the changes") as step:
            self.cowfs.unmount(step)
        self.expect_plain()

    def checkpoint(self, step: Step, name: str, message: str) -> None:
        """Makes a checkpoint and remembers its id."""
        answer = self.cowfs(step, "checkpoint", "-m", message)
        self.checkpoints[name] = answer["checkpoint"]["id"]

    def record(self, name: str) -> None:
        """Lists the mount now, without cowfs, and keeps the listing outside of it."""
        taken = listing.take(self.mount)
        file = self.work / f"listing-{name}.jsonl"
        listing.save(taken, file)
        self.listings[name] = taken
        self.report.line(f"    listed without cowfs: {len(taken):,} paths, into {file.name}")

    def copy_reference(self) -> None:
        """A full copy of the second state, outside of the mount, made and checked without cowfs."""
        subprocess.run(["cp", "-a", "--", self.mount, self.reference], check=True)
        self.report.check(
            "cp -a has made a true reference copy",
            listing.compare(self.listings["two"], listing.take(self.reference), PORTABLE_FIELDS),
        )

    def make_step_note(self, step: Step) -> None:
        """Counts what the changes have done, for the table."""
        before, after = self.listings["one"], listing.take(self.mount)
        created = len(after.keys() - before.keys())
        deleted = len(before.keys() - after.keys())
        common = before.keys() & after.keys()
        changed = sum(before[name] != after[name] for name in common)
        step.note = f"{created} new, {deleted} gone, {changed} changed paths"

    def show_diff(self, step: Step) -> None:
        """Prints the first and the last lines of `cowfs diff --stat`."""
        lines = self.cowfs.text(
            step, "diff", self.checkpoints["one"], self.checkpoints["two"], "--stat"
        )
        for text in [*lines[:5], "...", *lines[-2:]] if len(lines) > 8 else lines:
            self.report.line(f"    | {text}"[:100])

    @contextmanager
    def open_file(self, touched: Touched) -> Iterator[OpenFile]:
        """Holds a file open, as an editor or a server does, while the tree goes and comes back."""
        with OpenFile(self, touched.appended) as held:
            yield held

    def ruin(self, step: Step) -> None:
        """Deletes everything, .git too, and leaves something that must go away again."""
        self.tools.shell(
            step, "shopt -s dotglob nullglob; rm -rf -- ./*", shown="rm -rf -- ./* ./.*"
        )
        self.tools.shell(step, "echo gone >OOPS.txt", shown="echo gone >OOPS.txt")
        self.record("ruined")
        left = sorted(self.listings["ruined"].keys() - {".", "OOPS.txt"})
        self.report.check("everything is gone", left)

    def undo_and_redo(self) -> None:
        """The restore is itself undone, then done again."""
        with self.report.step("undo: the ruined tree is back") as step:
            self.cowfs(step, "undo")
        self.expect("ruined", "back in ruins")
        with self.report.step("redo") as step:
            self.cowfs(step, "redo")
        self.expect("two", "restored")

    def restore_older(self, touched: Touched) -> None:
        """To the first checkpoint, a single path from the second, and all of the second again."""
        with self.report.step("restore checkpoint 1") as step:
            self.cowfs(step, "restore", self.checkpoints["one"])
        self.expect("one", "restored")
        if touched.appended is not None:
            name = touched.appended
            with self.report.step("restore one file of checkpoint 2") as step:
                self.cowfs(step, "restore", self.checkpoints["two"], name)
            expected = self.listings["one"] | {name: self.listings["two"][name]}
            now = listing.take(self.mount)
            # Its directory may have been written to, depending on how the file had changed.
            parent = os.path.dirname(name) or "."
            self.report.check(
                "this file is as in checkpoint 2, all others as in checkpoint 1",
                listing.compare(expected, now, ALL_FIELDS, ignore=frozenset({parent})),
            )
        with self.report.step("restore checkpoint 2 again") as step:
            self.cowfs(step, "restore", self.checkpoints["two"])
        self.expect("two", "restored")
        if touched.deleted is not None:
            with self.report.step("restore one file deleted since 1") as step:
                self.restore_deleted(step, touched.deleted)
            self.expect("two", "restored")

    def restore_deleted(self, step: Step, name: str) -> None:
        """Gets one deleted file back, then takes that back."""
        self.cowfs(step, "restore", self.checkpoints["one"], name)
        now = listing.take(self.mount)
        expected = self.listings["two"] | {name: self.listings["one"][name]}
        parent = os.path.dirname(name) or "."
        self.report.check(
            "this file is back, all others are as they were",
            listing.compare(expected, now, ALL_FIELDS, ignore=frozenset({parent})),
        )
        self.cowfs(step, "undo")

    def expect(self, name: str, what: str) -> None:
        """The mount now is what it was when it was listed, inode numbers included."""
        now = listing.take(self.mount)
        self.report.check(
            f"{len(now):,} paths {what}: content, type, mode, owner, times, links, inode",
            listing.compare(self.listings[name], now, ALL_FIELDS),
        )

    def expect_reference(self) -> None:
        """`diff -r` finds nothing, and git is content with its repository."""
        self.report.check("diff -r with the reference copy finds nothing", self.diff_reference())
        proof = Step(0, "")  # its time is not the restore's
        status = self.tools.git(proof, "status", "--short")
        self.tools.git(proof, "fsck", "--no-progress", "--no-dangling")
        self.report.check(
            "git fsck finds no fault, and git status says what it did before",
            [] if status == self.git_status else status.splitlines(),
        )

    def diff_reference(self) -> list[str]:
        """What `diff -r` has to say about the project's directory now and the reference copy."""
        result = subprocess.run(
            ["diff", "-r", "--no-dereference", "--", self.reference, self.mount],
            env=changes.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
        )
        # diff does not compare these, and says so; the listings do.
        special = ("is a fifo while", "is a socket while", "special file while")
        lines = (result.stdout + result.stderr).splitlines()
        return [line for line in lines if not any(text in line for text in special)]

    def expect_plain(self) -> None:
        """The directory itself, with nothing mounted, is what the mount was."""
        self.report.check(
            "the plain directory has all of checkpoint 2: content, mode, owner, times, links",
            listing.compare(self.listings["two"], listing.take(self.mount), PORTABLE_FIELDS),
        )
        self.report.check("diff -r with the reference copy finds nothing", self.diff_reference())


@dataclass
class OpenFile:
    """A file that stays open; calling it checks that it reads what was restored."""

    demo: Demo
    name: str | None
    handle: int = -1

    def __enter__(self) -> OpenFile:
        if self.name is not None:
            self.handle = os.open(self.demo.mount / self.name, os.O_RDONLY)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.handle >= 0:
            os.close(self.handle)

    def __call__(self) -> None:
        if self.name is None:
            return
        wanted = self.demo.listings["two"][self.name]
        content = os.pread(self.handle, wanted.size + 1, 0)
        same = hashlib.sha256(content).hexdigest() == wanted.content
        self.demo.report.check(
            "a file that was open all the time reads what was restored",
            [] if same else [f"{self.name}: {len(content)} bytes, not the content expected"],
        )


def main() -> int:
    """Parses the command line, runs the demo and cleans up. Returns the exit code."""
    os.environ.pop("PYTHONPATH", None)  # it brought this program here, and is for no other
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", metavar="DIR", nargs="?", help="a project of your own, copied first")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory there")
    arguments = parser.parse_args()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    report = Report()
    code = 0
    try:
        source = _source(arguments.dir)
        _check_fuse()
        with _work_directory(arguments.keep, report) as work:
            _run(source, work, report)
    except (DemoError, OSError, subprocess.CalledProcessError) as error:
        _complain("", *f"scripts/demo: {error}".splitlines())
        code = 1
    except KeyboardInterrupt:
        _complain("", "scripts/demo: interrupted")
        return 130
    if report.failed:
        _complain("", f"scripts/demo: {len(report.failed)} checks have FAILED:")
        _complain(*(f"  {what}" for what in report.failed))
        _complain("To look at what is there, run it again with --keep.")
        code = 1
    if code == 0:
        report.line(f"{report.passed} checks, all passed: everything is back, bit for bit.")
    return code


def _complain(*lines: str) -> None:
    """Prints to standard error, after what was printed before."""
    sys.stdout.flush()
    for line in lines:
        print(printable(line), file=sys.stderr)


def _run(source: Path | None, work: Path, report: Report) -> None:
    directory = work / "project"
    directory.mkdir()
    what = project.prepare(source, directory, report)
    size = project.measure(directory)
    report.line(f"The project: {what}, {size.files:,} files, {size.size / 1e6:.1f} MB")
    report.line(f"in {work}")
    if size.files == 0:
        raise DemoError("there is no file in it")
    cowfs = Cowfs(report, directory, work / "store")
    try:
        cowfs.watch_signals()
        Demo(work, report, cowfs, Tools(report, directory)).run()
        store = _disk_use(cowfs.store)
    except DemoError as error:
        raise DemoError(f"{error}\n{_log_end(cowfs.store)}".rstrip()) from error
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        cowfs.clean_up()
    report.table()
    report.line(f"The store, which holds all of these states: {store / 1e6:.1f} MB on the disk")


@contextmanager
def _work_directory(keep: bool, report: Report) -> Iterator[Path]:
    """A temporary directory, removed at the end unless something is still mounted in it."""
    work = Path(tempfile.mkdtemp(prefix="cowfs-demo-")).resolve()
    try:
        yield work
    finally:
        if keep:
            report.line(f"kept: {work}")
            report.line(f"To mount it again: cowfs mount {work}/project --store {work}/store")
        elif is_mounted(work / "project"):
            report.line(f"not removed, because it is still mounted: {work}")
        else:
            _remove(work)


def _log_end(store: Path) -> str:
    """The last lines of the daemon's log, with a heading; empty when there is none."""
    try:
        lines = (store / "daemon.log").read_text(errors="backslashreplace").splitlines()
    except OSError:
        return ""
    return "\n".join(["The daemon's log ends with:", *(f"  {line}" for line in lines[-5:])])


def _disk_use(folder: Path) -> int:
    """What the files below *folder* take on the disk, in bytes."""
    return sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))


def _remove(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    if work.exists():  # directories that nobody may write to
        subprocess.run(["chmod", "-R", "u+rwX", "--", work], check=False)
        shutil.rmtree(work)


def _source(text: str | None) -> Path | None:
    if text is None:
        return None
    source = Path(text).resolve()
    if not source.is_dir():
        raise DemoError(f"{text} is not a directory")
    return source


def _check_fuse() -> None:
    if not os.path.exists("/dev/fuse"):
        raise DemoError(
            "/dev/fuse is missing: this machine has no FUSE. Try `sudo modprobe fuse`; "
            "a container needs --device /dev/fuse --cap-add SYS_ADMIN."
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise DemoError(
            "/dev/fuse is closed to you. Run this as root, or open it: sudo chmod 666 /dev/fuse"
        )


def _end(number: int, _frame: FrameType | None) -> None:
    """Turns a signal into an exception, so that everything is unmounted and removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
