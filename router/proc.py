"""Processes as Linux shows them under /proc: who they are, what they have used, and when they are really gone.

A pid alone names nothing for long. Here a process is its pid together with its start time in clock ticks since boot,
or a member of a session whose leader has not been reaped (so that its number cannot be given away), or a bearer of
our marker in its environment.

Everything here reads a few small files and may be called from any thread. It sends no signal and knows no replica.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of /proc/PID/stat. `cpu_ticks` is user and system time, `faults` minor and major page faults."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    faults: int
    cpu_ticks: int
    started_ticks: int

    @property
    def alive(self) -> bool:
        """A zombie holds nothing any more but its number."""
        return self.state not in "ZXx"


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses included: the last one ends it.
    rest = text[text.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=rest[0].decode(),
        parent=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        faults=int(rest[7]) + int(rest[9]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        started_ticks=int(rest[19]),
    )


def every() -> Iterator[Stat]:
    """Every process that this one may see."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (found := stat(int(name))) is not None:
            yield found


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or belongs to somebody else."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def command(pid: int) -> list[str]:
    """The argv of a process; empty when it is gone."""
    return [os.fsdecode(word) for line in _lines(f"/proc/{pid}/cmdline") for word in line.split(b"\0")[:-1]]


def members(session: int, variable: str, marker: str) -> list[Stat]:
    """The processes of a session, zombies included, and those that left it but still bear `variable=marker`."""
    return [found for found in every() if found.session == session or environment(found.pid).get(variable) == marker]


def bytes_moved(pid: int) -> tuple[int, int]:
    """Bytes that a process has read and written, on disk or in the page cache; zeros when it may not be told."""
    lines = _lines(f"/proc/{pid}/io")
    return (int(lines[0].split()[1]), int(lines[1].split()[1])) if len(lines) > 1 else (0, 0)


def file_mapped_bytes(pid: int) -> int:
    """Resident bytes of mapped files: how much of a memory-mapped model is in memory; 0 when it may not be told."""
    return _field(f"/proc/{pid}/status", b"RssFile:") * 1024


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, on this machine and in our own control group."""
    paths = ["/proc/vmstat"]
    for _, controllers, path in _control_groups():
        if controllers == "":
            paths.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            paths.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return sum(_field(path, b"oom_kill ") for path in paths)


def listener_inodes(port: int) -> set[int]:
    """Socket numbers of whoever listens on this TCP port of this machine."""
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(path)[1:]:
            fields = line.split()
            if fields[3] == b"0A" and int(fields[1].rpartition(b":")[2], 16) == port:
                found.add(int(fields[9]))
    return found


def holds_socket(pids: Iterable[int], inodes: set[int]) -> bool:
    """Whether one of these processes has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in wanted:
                    return True
            except OSError:
                continue
    return False


def _control_groups() -> list[tuple[str, str, str]]:
    rows = [line.decode(errors="replace").split(":", 2) for line in _lines("/proc/self/cgroup")]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _field(path: str, name: bytes) -> int:
    for line in _lines(path):
        if line.startswith(name):
            return int(line[len(name) :].split()[0])
    return 0
