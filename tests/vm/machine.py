"""One virtual machine: start, talk, save, resume, and end it as a power cut does.

Used by one thread. The disks: the image (never written), the checkout as a tar archive, the data,
and the request of the moment. What is emulated must be the same when a saved state is resumed,
so the same arguments are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash.knowledge import CrashError
from tests.vm.agent import REQUEST_BYTES
from tests.vm.image import Image, cache, pack
from tests.vm.trouble import RUN_BYTES, VmError, need_room

QEMU = "qemu-system-x86_64"
_MEMORY = 1024
_BLOCK = 512
_BOOT_SECONDS, _TRIAL_SECONDS = 180, 25
_ANSWER_SECONDS = 60
_KERNEL = "console=ttyS0 panic=-1 quiet mitigations=off edd=off no_timer_check apparmor=0 audit=0"


class Machine:
    """A machine and its files in a directory of its own.

    data: the image of its disk, to be made before a start. log: if not None, every write to that
    disk is recorded there, in the format of dm-log-writes.
    """

    def __init__(self, image: Image, place: Path, accel: str, data_bytes: int) -> None:
        self._image, self._accel = image, accel
        self._size = data_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._agent = self._qmp = socket.socket()
        self._rest = self._answers = b""
        self.place = place
        self.data, self.state = place / "data", place / "state"
        self.console, self.log = place / "console", place / "log"
        self.logged = False
        pack(place / "checkout")
        os.truncate(place / "checkout", -(-(place / "checkout").stat().st_size // _BLOCK) * _BLOCK)
        with open(place / "request", "wb") as file:
            file.truncate(REQUEST_BYTES)

    # -- life -----------------------------------------------------------------------------------

    def make_data(self, file_system: int | None = None) -> None:
        """A new ext4 on the disk, as large as the disk or so many bytes."""
        self.data.unlink(missing_ok=True)
        with open(self.data, "wb") as file:
            file.truncate(self._size)
        tool = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        assert tool is not None
        blocks = (file_system or self._size) // 4096
        subprocess.run(
            [tool, "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0", self.data, str(blocks)],
            check=True,
            capture_output=True,
        )

    def boot(self) -> None:
        """Start from nothing, until the agent is ready. Raises VmError."""
        self._start()
        if self.read(_BOOT_SECONDS) != ["ready"]:
            raise self._failure("the machine does not start")

    def save(self) -> None:
        """Write the machine's state into a file, and end it."""
        self._command("stop")
        self._command("migrate", uri=f"exec:cat > {shlex.quote(str(self.state))}")
        while (status := self._command("query-migrate")["status"]) != "completed":
            if status == "failed":
                raise self._failure("the machine cannot be saved")
            time.sleep(0.02)
        self.cut()

    def resume(self) -> None:
        """Go on from the saved state, with the disks as they are now."""
        self._start("-incoming", f"exec:cat {shlex.quote(str(self.state))}")
        while self._command("query-status")["status"] == "inmigrate":
            time.sleep(0.01)
        self._command("cont")

    def cut(self) -> None:
        """The power goes. What was reported can still be read."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._qmp.close()

    def quit(self) -> None:
        """End it so that QEMU writes the beginning of its log, too."""
        self._command("quit")
        if self._process is not None:
            self._process.wait()
        self.cut()

    def _start(self, *more: str) -> None:
        self._agent.close()
        self._agent, serial = socket.socketpair()
        self._qmp, monitor = socket.socketpair()
        self._rest = self._answers = b""
        descriptors = (serial.fileno(), monitor.fileno())
        words = [*self._arguments("agent", *descriptors), "-serial", f"file:{self.console}"]
        self._process = subprocess.Popen(
            [*words, "-device", "isa-serial,chardev=agent", *more],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=open(self.place / "messages", "wb"),  # noqa: SIM115
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        serial.close()
        monitor.close()
        self._answer()  # the greeting
        self._command("qmp_capabilities")

    def shell(self) -> int:
        """A shell in the machine, on this terminal."""
        end, monitor = socket.socketpair()
        with end, monitor:
            words = self._arguments("shell", monitor.fileno(), monitor.fileno())
            serial = ["-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty"]
            return subprocess.call([*words, *serial], pass_fds=[monitor.fileno()])

    def _arguments(self, mode: str, serial: int, monitor: int) -> list[str]:
        words = [QEMU, "-M", "q35", "-m", str(_MEMORY), "-smp", "1", "-nodefaults"]
        words += ["-display", "none", "-no-reboot", "-accel", self._accel]
        words += ["-cpu", "host" if self._accel == "kvm" else "max"]
        words += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)]
        words += ["-append", f"{_KERNEL} cowfs={mode}"]
        words += _chardev("agent", serial) if mode == "agent" else []
        words += [*_chardev("monitor", monitor), "-mon", "chardev=monitor,mode=control"]
        words += _disk("root", self._image.root, readonly=True)
        words += _disk("checkout", self.place / "checkout", readonly=True)
        words += _disk("data", self.data, log=self.log if self.logged else None)
        return words + _disk("request", self.place / "request")

    # -- talking --------------------------------------------------------------------------------

    def ask(self, do: str, **values: Any) -> None:
        """Give the agent a request; it reports until ["end", code]."""
        request = {"do": do, "now": time.time(), "entropy": os.urandom(32).hex(), **values}
        text = json.dumps(request).encode()
        if len(text) > REQUEST_BYTES:
            raise VmError("a request is too large")
        (self.place / "request").write_bytes(text.ljust(REQUEST_BYTES, b"\0"))
        self._agent.sendall(b"go\n")

    def read(self, seconds: float) -> list[Any] | None:
        """The next report; None if there is none within so many seconds, or any more at all."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = max(end - time.monotonic(), 0)
            if not select.select([self._agent], [], [], left)[0]:
                return None
            try:
                piece = self._agent.recv(65536)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        report: list[Any] = json.loads(line)
        return report

    def reports(self, seconds: float) -> Iterator[list[Any]]:
        """Reports until ["end", code]. Raises VmError when none comes for so many seconds, or the
        agent says that something is wrong: CrashError."""
        while (report := self.read(seconds)) != ["end", 0]:
            if report is None:
                raise self._failure(f"the machine said nothing for {seconds:.0f} s")
            if report[0] in ("failed", "end"):
                raise CrashError(f"in the machine: {report[1]}")
            yield report

    def _command(self, name: str, **arguments: Any) -> Any:
        self._qmp.sendall(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._answer()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise self._failure(f"QEMU refuses {name}: {answer['error']}")

    def _answer(self) -> dict[str, Any]:
        self._qmp.settimeout(_ANSWER_SECONDS)
        while b"\n" not in self._answers:
            try:
                piece = self._qmp.recv(65536)
            except (TimeoutError, ConnectionResetError):
                piece = b""
            if not piece:
                raise self._failure("QEMU does not answer")
            self._answers += piece
        line, self._answers = self._answers.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, message: str) -> VmError:
        """With what QEMU and the machine's kernel said."""
        lines = [message]
        for name in ("messages", "console"):
            with contextlib.suppress(OSError):
                text = (self.place / name).read_text(errors="replace")
                lines += [f"{name}: {line}" for line in text.splitlines()[-12:]]
        return VmError("\n".join(lines))


def _chardev(name: str, fd: int) -> list[str]:
    return ["-chardev", f"socket,id={name},fd={fd}"]


def _disk(name: str, file: Path, *, readonly: bool = False, log: Path | None = None) -> list[str]:
    def blockdev(**values: object) -> list[str]:
        return ["-blockdev", json.dumps({key.replace("_", "-"): v for key, v in values.items()})]

    raw = blockdev(driver="file", filename=str(file), node_name=f"{name}-file", read_only=readonly)
    top = f"{name}-file"
    if log is not None:
        raw += blockdev(driver="file", filename=str(log), node_name=f"{name}-log")
        parts = {"file": top, "log": f"{name}-log", "log_sector_size": _BLOCK}
        raw += blockdev(driver="blklogwrites", node_name=f"{name}-logged", **parts)
        top = f"{name}-logged"
    return [*raw, "-device", f"virtio-blk-pci,drive={top}"]


@contextlib.contextmanager
def machine(image: Image, parent: Path, accel: str, data_bytes: int) -> Iterator[Machine]:
    """A machine that is not started; when the block ends it is gone with its files."""
    need_room(parent, RUN_BYTES)
    place = Path(
        subprocess.check_output(["mktemp", "-d", parent / "cowfs-vm.XXXXXX"], text=True).strip()
    )
    try:
        made = Machine(image, place, accel, data_bytes)
        try:
            yield made
        finally:
            made.cut()
    finally:
        shutil.rmtree(place)


def choose_accel(image: Image, parent: Path, wanted: str) -> str:
    """ "kvm" only where a machine was seen to start with it; that is tried once for a kernel."""
    if wanted != "auto":
        return wanted
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = cache() / f"accel-{os.uname().release}"
    if not known.exists():
        with machine(image, parent, "kvm", 64 << 20) as trial:
            trial.make_data()
            found = "kvm" if _starts(trial) else "tcg"
        known.write_text(found)
    return known.read_text()


def _starts(trial: Machine) -> bool:
    try:
        trial._start()
        return trial.read(_TRIAL_SECONDS) == ["ready"]
    except VmError:
        return False
