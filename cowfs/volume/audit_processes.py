"""Who makes the requests: processes by number, with their command lines and parents.

A pid may be used again, and a process may become another program by execve(2), so what is known of
a pid is compared with /proc once in a round, which is a transaction group or, when groups are very
short, several: its start time and its name. A process
that was just forked still has the command line of its parent; it is looked at again at the 1st,
2nd, 4th, 8th ... request, and takes the new command line in place (docs/design/audit-log.md).

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cowfs.format import keys, records
from cowfs.format.audit import FIRST, UNKNOWN, ProcessRecord
from cowfs.store.group import TransactionGroup
from cowfs.store.snapshot import Reader
from cowfs.volume.audit_redaction import redacted
from cowfs.volume.audit_sessions import Agents, Call, Sessions, own_calls

_MOST = 4096
"""Threads and processes that are kept in memory."""
_DEEPEST = 64
_COMMAND_BYTES = 512
_READ_BYTES = 4096
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_INIT = 1
_STATUS = re.compile(rb"(?ms)^Tgid:\s*(\d+)$.*^Uid:\s*\d+\s+(\d+)\s")


class Seen(NamedTuple):
    """What /proc/PID/stat says: the name of the program, pid of the parent, start in clock ticks
    since the machine started."""

    name: bytes
    parent: int
    start: int


def _read(path: str) -> bytes:
    """The beginning of a file of /proc, b"" when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def look_at(pid: int) -> Seen | None:
    """A process or thread, None when it is gone or cannot be seen."""
    return parse_stat(_read(f"/proc/{pid}/stat"))


def _is_there(pid: int, start: int) -> bool:
    seen = look_at(pid)
    return seen is not None and seen.start == start


def parse_stat(line: bytes) -> Seen | None:
    """proc_pid_stat(5): the name is in parentheses, and may have some in it."""
    before, _, rest = line.rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Seen(before.partition(b"(")[2], int(fields[1]), int(fields[19]))


def command_of(pid: int) -> bytes:
    """Its arguments, each ended by a NUL, as /proc has them; b"" when it ended."""
    return _read(f"/proc/{pid}/cmdline")


def shown(command: bytes) -> bytes:
    """A command line for others to read: secrets left out, cut."""
    words = command.rstrip(b"\0").split(b"\0")
    if words == [b""]:
        return b""
    return b"".join(word + b"\0" for word in redacted(words))[:_COMMAND_BYTES]


def group_and_user(pid: int) -> tuple[int, int]:
    """(process that a thread belongs to, effective uid); (pid, -1) when it is gone."""
    found = _STATUS.search(_read(f"/proc/{pid}/status"))
    return (int(found[1]), int(found[2])) if found else (pid, -1)


def user_name(uid: int) -> str:
    """Login name, the number as text when it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


class _Process:
    """What is known of a process, by one of its threads.

    start, name: of the thread, as last seen. round: the group in which that was. fresh: it still
    has the command line of its parent. looks, next_look: how often it was asked for while it was
    fresh, and when to look again. writes: requests by which the kernel wrote for it while it was
    fresh. record: what the store gets; written: and has.
    """

    __slots__ = (
        "fresh",
        "looks",
        "name",
        "next_look",
        "number",
        "pid",
        "record",
        "round",
        "start",
        "writes",
        "written",
    )

    def __init__(self, number: int, pid: int, seen: Seen, record: ProcessRecord) -> None:
        self.number = number
        self.pid = pid
        self.start = seen.start
        self.name = seen.name
        self.record = record
        self.round = 0
        self.fresh = False
        self.looks = 0
        self.next_look = 1
        self.writes = 0
        self.written = False


class Processes:
    """The processes that were met. fresh: numbers of those that were just forked."""

    def __init__(self, reader: Reader) -> None:
        last = reader.last_key("process")
        self._next = max(keys.unpack_id(last) + 1 if last else FIRST, FIRST)
        self._by_pid: dict[int, _Process] = {}
        self._by_number: dict[int, _Process] = {}
        self.fresh: set[int] = set()
        self._sessions = Sessions(_is_there)
        self._users: dict[int, str] = {}
        self._round = 1
        self._boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def number(self, pid: int) -> int:
        """The number of the process that a thread belongs to; UNKNOWN when there is no telling."""
        process = self._by_pid.get(pid)
        if process is not None and process.round == self._round and not process.fresh:
            return process.number
        return self._look(pid, process)

    def pid(self, number: int) -> int:
        """The pid that a process had, UNKNOWN when it is not kept in memory."""
        process = self._by_number.get(number)
        return process.record.pid if process is not None else UNKNOWN

    def follow(self, agents: Agents, calls: Mapping[str, Sequence[Call]]) -> None:
        """The sessions that are going on, and the calls of their tools, are others now. Processes
        that belong somewhere else by that are met anew."""
        before = self._sessions
        if agents != before.agents:
            self._by_pid = {}
        elif own_calls(calls) != own_calls(before.calls):
            known = (self._by_pid.get(pid) for pid, _ in agents)
            numbers = {process.number for process in known if process is not None}
            kept = {pid: p for pid, p in self._by_pid.items() if p.number not in numbers}
            self._by_pid = kept
        before.agents, before.calls = agents, calls

    def is_outside(self, number: int) -> bool:
        """Whether a process belongs to no session, though one is going on."""
        process = self._by_number.get(number)
        return process is not None and process.record.outside

    def writes(self, number: int) -> None:
        """The kernel writes for one that is fresh: see what it became since it opened the file, at
        the 1st, 2nd, 4th, 8th ... time. It may be about to end."""
        process = self._by_number.get(number)
        if process is None:
            self.fresh.discard(number)
            return
        process.writes += 1
        if not process.writes & (process.writes - 1):
            self.refresh(number)

    def refresh(self, number: int) -> None:
        """See what one that is fresh has become."""
        process = self._by_number.get(number)
        if process is None:
            self.fresh.discard(number)
        elif (seen := look_at(process.pid)) is not None:
            self._see_again(process, seen)
        else:
            self._settle(process)

    def has_ended(self, number: int) -> bool:
        """Whether a process is not there any more, or about to end: its memory goes first."""
        process = self._by_number.get(number)
        return process is not None and not command_of(process.pid)

    def of(self, pid: int, uid: int, user: str, command: str) -> int:
        """The number of who asked for something by the socket; known by that, if not by /proc."""
        number = self.number(pid) if pid > _INIT else UNKNOWN
        if number != UNKNOWN or not (pid or command):
            return number
        arguments = b"".join(word + b"\0" for word in redacted(os.fsencode(command).split(b" ")))[
            :_COMMAND_BYTES
        ]
        name = os.path.basename(arguments.partition(b"\0")[0]).decode("utf-8", "replace")
        record = ProcessRecord(pid, 0, uid, user, name, arguments)
        process = _Process(self._take(), pid, Seen(b"", 0, 0), record)
        self._by_number[process.number] = process
        return process.number

    # -- looking at /proc -------------------------------------------------------------------------

    def _look(self, pid: int, process: _Process | None, depth: int = 0) -> int:
        if pid <= 0:
            return UNKNOWN  # of another pid namespace
        if process is not None and process.round == self._round:
            process.looks += 1
            if process.looks < process.next_look:
                return process.number
            process.next_look *= 2
        seen = look_at(pid)
        if seen is None:
            if process is not None:
                process.round = self._round
                self._settle(process)
                return process.number  # it ended, and its pid is not used again
            return UNKNOWN
        if process is not None and self._see_again(process, seen):
            return process.number
        return self._meet(pid, seen, depth)

    def _settle(self, process: _Process) -> None:
        process.fresh = False
        self.fresh.discard(process.number)

    def _see_again(self, process: _Process, seen: Seen) -> bool:
        """Whether it is the same one; a program that took the place of a fork is."""
        if seen.start != process.start:
            return False
        process.round = self._round
        if not process.fresh:
            return seen.name == process.name
        line = command_of(process.pid)
        command = shown(line)
        if not command and seen.name != process.name:
            command = seen.name + b"\0"  # it is about to end
        if command and command != process.record.command:
            self._settle(process)
            process.record = self._record(process.record, seen, command, line)
            process.written = False
            process.name = seen.name
        return True

    def _meet(self, pid: int, seen: Seen, depth: int) -> int:
        group, uid = group_and_user(pid)
        if group != pid:
            known = self._by_pid.get(group)
            leader = look_at(group) or seen
            if known is None or known.start != leader.start:
                self._look(group, None, depth)
                known = self._by_pid.get(group)
            if known is not None and known.start == leader.start:
                thread = self._by_pid[pid] = _Process(known.number, pid, seen, known.record)
                thread.round, thread.written = self._round, True
                return known.number
        parent = self._parent(seen.parent, depth)
        line = command_of(group)
        command = shown(line)
        above = self._by_number.get(parent)
        belongs = self._sessions.belonging(
            group, seen.start, line, above.record if above is not None else None
        )
        record = ProcessRecord(
            group,
            self._boot + seen.start * _TICK_NS,
            max(uid, 0),
            self._user(uid),
            seen.name.decode("utf-8", "replace"),
            command or seen.name + b"\0",
            parent,
            *belongs,
        )
        process = _Process(self._take(), pid, seen, record)
        if above is not None and above.record.command == record.command:
            process.fresh = True
            self.fresh.add(process.number)
        process.round = self._round
        self._by_pid[pid] = self._by_number[process.number] = process
        return process.number

    def _parent(self, pid: int, depth: int) -> int:
        """The number of a parent; the chain ends below the first process of the machine."""
        if pid <= _INIT or depth >= _DEEPEST:
            return UNKNOWN
        known = self._by_pid.get(pid)
        if known is not None and known.round == self._round:
            return known.number
        return self._look(pid, known, depth + 1)

    def _record(self, old: ProcessRecord, seen: Seen, command: bytes, line: bytes) -> ProcessRecord:
        """Of a fork that has become a program. line: the whole of its command."""
        above = self._by_number.get(old.parent)
        belongs = self._sessions.belonging(
            old.pid, seen.start, line, above.record if above is not None else None
        )
        return ProcessRecord(
            old.pid,
            old.started,
            old.uid,
            old.user,
            seen.name.decode("utf-8", "replace"),
            command,
            old.parent,
            *belongs,
        )

    def _user(self, uid: int) -> str:
        if uid < 0:
            return ""
        name = self._users.get(uid)
        if name is None:
            name = self._users[uid] = user_name(uid)
        return name

    def _take(self) -> int:
        number = self._next
        self._next = number + 1
        return number

    # -- the store --------------------------------------------------------------------------------

    def put(self, number: int, group: TransactionGroup) -> None:
        """Write a process and those above it with a group, if the store has them not yet."""
        while number >= FIRST:
            process = self._by_number.get(number)
            if process is None or process.written:
                return
            process.written = True
            group.put("process", keys.pack_id(number), records.encode(process.record))
            number = process.record.parent

    def withdrawn(self) -> None:
        """A group is not written after all."""
        for process in self._by_number.values():
            process.written = False

    def next_round(self, writing: Callable[[], Iterable[int]]) -> None:
        """From now on look at each process again when it is met, and forget some if there are many;
        not those that `writing` names, for which the kernel may write yet."""
        self._round += 1
        if len(self._by_number) + len(self._by_pid) > 2 * _MOST:
            self._forget(writing())

    def _forget(self, writing: Iterable[int]) -> None:
        """Keep those that were met lately or are `writing`, and what is above them."""
        lately = self._round - 2
        kept: dict[int, _Process] = {}
        met = {process.number for process in self._by_pid.values() if process.round >= lately}
        for number in met.union(writing):
            while number not in kept:
                found = self._by_number.get(number)
                if found is None:
                    break
                kept[number] = found
                number = found.record.parent
        self._by_number = kept
        self.fresh &= kept.keys()
        self._by_pid = {pid: p for pid, p in self._by_pid.items() if p.number in kept}

    def known(self) -> frozenset[int]:
        """Numbers that may be used again: their records must stay in the store."""
        return frozenset(self._by_number)
