"""The `cowfs` command as the demo uses it, and the certainty that nothing stays mounted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _demo.terminal import DemoError, Report, Step

_TIMEOUT = 1800.0
_GRACE = 20.0
"""Seconds that a daemon has to end after its mount is gone."""


@dataclass
class Cowfs:
    """Runs `cowfs` commands on one workspace and prints each with its time.

    They run as a user would type them: mount and unmount beside the project, all others inside.
    `project` and `store` lie in the same directory. `pid` is the daemon's, None while nothing
    is mounted.
    """

    report: Report
    project: Path
    store: Path
    pid: int | None = None
    _cleaning: threading.Event = field(default_factory=threading.Event)

    def mount(self, step: Step) -> None:
        """Mounts the project over itself."""
        answer = self(step, "mount", self.project.name, "--store", self.store.name)
        self.pid = int(answer["pid"])

    def unmount(self, step: Step) -> dict[str, Any]:
        """Unmounts, and so applies what was changed to the directory itself."""
        answer = self(step, "unmount", self.project.name)
        if is_mounted(self.project):
            raise DemoError(f"cowfs unmount has returned, but {self.project} is still mounted")
        self._wait_for_end()
        return answer

    def __call__(self, step: Step, *arguments: str) -> dict[str, Any]:
        """Runs one command and returns its JSON document. Raises DemoError when it fails."""
        answer, elapsed = self._run([arguments[0], "--json", *arguments[1:]])
        step.elapsed += elapsed
        shown = "$ cowfs " + shlex.join(arguments)
        if "daemon_seconds" in answer:
            step.daemon = (step.daemon or 0.0) + float(answer["daemon_seconds"])
        self.report.timing(shown, elapsed)
        return answer

    def text(self, step: Step, *arguments: str) -> list[str]:
        """Runs one command and returns the lines that it prints for people."""
        started = time.perf_counter()
        result = self._start(list(arguments))
        elapsed = time.perf_counter() - started
        step.elapsed += elapsed
        if result.returncode != 0:
            raise DemoError(f"cowfs {shlex.join(arguments)} failed:\n{result.stderr.strip()}")
        self.report.timing("$ cowfs " + shlex.join(arguments), elapsed)
        return result.stdout.splitlines()

    def watch_signals(self) -> None:
        """Makes sure that this program can be interrupted even if the mount does not answer.

        A system call that waits for a daemon that hangs cannot be interrupted, and Python's
        signal handlers run after it. So another thread learns of the signal, and ends the
        daemon if that has not been done in time.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def end_daemon() -> None:
            while os.read(reader, 1)[0] == signal.SIGCHLD:
                pass
            if not self._cleaning.wait(_GRACE) and self.pid is not None and _is_cowfs(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

        threading.Thread(target=end_daemon, daemon=True).start()

    def clean_up(self) -> None:
        """Unmounts in any case, without applying, and ends the daemon. Never raises."""
        self._cleaning.set()
        if is_mounted(self.project):
            with contextlib.suppress(OSError, DemoError):
                self._start(["unmount", self.project.name, "--no-apply", "--force"], timeout=30)
        if is_mounted(self.project):
            commands = [["fusermount3", "-u", "-z"], ["umount", "-l"]]
            for command in commands:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        [*command, os.fspath(self.project)],
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        timeout=30,
                        check=False,
                    )
        if is_mounted(self.project):
            self.report.line(f"{self.project} is still mounted. As root:  umount -l {self.project}")
        with contextlib.suppress(OSError, DemoError):
            self._wait_for_end()

    def _run(self, arguments: list[str]) -> tuple[dict[str, Any], float]:
        started = time.perf_counter()
        result = self._start(arguments)
        elapsed = time.perf_counter() - started
        shown = "cowfs " + shlex.join(arguments)
        try:
            answer = json.loads(result.stdout)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and answer.get("ok") is True and result.returncode == 0:
            return answer, elapsed
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            error = answer["error"]
            text = f"{error.get('code')}: {error.get('message')}\n  hint: {error.get('hint')}"
        else:
            text = (result.stderr.strip() or result.stdout.strip() or "it printed nothing")[-2000:]
        raise DemoError(f"{shown}\nended with exit code {result.returncode}:\n{text}")

    def _start(
        self, arguments: list[str], timeout: float = _TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        command = os.path.join(os.path.dirname(sys.executable), "cowfs")
        outside = arguments[0] in {"mount", "unmount"}
        with subprocess.Popen(
            [command, *arguments],
            cwd=self.project.parent if outside else self.project,
            # cowfs' register of workspaces: the user's own is for the user's own.
            env=os.environ | {"XDG_DATA_HOME": os.fspath(self.project.parent / "data")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise DemoError(
                    f"cowfs {shlex.join(arguments)} did not end within {timeout:.0f} s"
                ) from error
            except BaseException:
                # Killed half-way, it might still mount after the clean-up.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_GRACE)
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def _wait_for_end(self) -> None:
        """Waits until the daemon has ended; one that does not is told to, then killed."""
        if self.pid is None:
            return
        pid, self.pid = self.pid, None
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if not _is_cowfs(pid) or _ended(handle, _GRACE):
                return
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if _ended(handle, _GRACE):
                    break
        finally:
            os.close(handle)
        raise DemoError(
            f"the daemon (pid {pid}) did not end by itself {_GRACE:.0f} s after unmount"
        )


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at *path*, also when what is mounted there is dead."""
    wanted = os.path.realpath(path.parent) + "/" + path.name
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(_unescape(line.split(" ")[4]) == wanted for line in file)


def _unescape(field: str) -> str:
    """Mount points in /proc have blanks and the like as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _ended(handle: int, limit: float) -> bool:
    """Whether the process behind a pidfd ends within *limit* seconds."""
    return bool(select.select([handle], [], [], limit)[0])


def _is_cowfs(pid: int) -> bool:
    """Guards against a number that another process has by now."""
    try:
        return b"cowfs" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
