"""What `checkpoint` and `status` say to people. On the quick path: imports next to nothing."""

from __future__ import annotations

import time

from cowfs.cli import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def checkpoint(answer: dict[str, Any]) -> str:
    """The answer of `checkpoint`."""
    record = answer["checkpoint"]
    label = f" ({record['label']})" if record["label"] else ""
    return f"checkpoint {record['id'][:8]}{label}: {output.counts(record['counts'])}"


def placed(
    report: dict[str, Any], *, base: str, mountpoint: str, store: str, mounted: bool
) -> dict[str, Any]:
    """The daemon's report completed to the JSON form of `status`."""
    return {
        "mounted": mounted,
        "workspace": base,
        "mountpoint": mountpoint,
        "store": store,
        **report,
    }


def status(report: dict[str, Any]) -> str:
    """The JSON form of `status` as text."""
    health = report["health"]
    where = report["workspace"]
    lines = []
    if health["state"] == "dead":
        lines.append(f"{where}: its daemon is dead; the mount at {report['mountpoint']} is too")
    elif not report["mounted"]:
        lines.append(f"{where} is not mounted")
    elif report["mountpoint"] == where:
        lines.append(f"{where} is mounted, daemon pid {report['pid']}")
    else:
        lines.append(f"{where} is mounted at {report['mountpoint']}, daemon pid {report['pid']}")
    rows = [
        ("store", f"{report['store']} ({_room(report)})"),
        ("branch", f"{report['branch']}, epoch {report['head_epoch']}"),
        ("last", _last(report["last_checkpoint"])),
        ("since then", output.counts(report["changes"])),
    ]
    if imported := report["import"]:
        read = ", ".join(
            (
                output.plural(imported["directories"], "directory", "directories"),
                output.plural(imported["files"], "file"),
            )
        )
        rows.append(("import", read + ("" if imported["complete"] else ", going on")))
    if sealing := report.get("sealing"):
        rows.append(("sealed", _sealed(sealing)))
    if collected := report.get("collected"):
        rows.append(("removed", _collected(collected)))
    if any((sessions := report.get("sessions") or {}).values()):
        rows.append(("sessions", _sessions(sessions)))
    if automatic := report.get("automatic"):
        rows.append(("automatic", automatic["profile"] if automatic["enabled"] else "off"))
    if outside := report.get("outside"):
        rows.append(("outside", f"{output.plural(outside, 'change')} by others than the sessions"))
    rows.append(("health", health["state"]))
    lines += [f"  {name:<11} {value}" for name, value in rows]
    for problem in health["problems"]:
        path = f" {problem['path']}" if problem.get("path") else ""
        lines.append(f"    {problem['kind']}:{path} {problem['detail']}")
    if health["state"] == "dead":
        lines.append(f"`cowfs mount {where}` cleans up and mounts again; what was synced is safe.")
    elif not report["mounted"]:
        lines.append(f"`cowfs mount {where}` mounts it.")
    return "\n".join(output.printable(line) for line in lines)


def _room(report: dict[str, Any]) -> str:
    size = output.size(report["store_bytes"])
    if quota := report["quota_bytes"]:
        return f"{size}; {output.size(report['used_bytes'])} of its quota of {output.size(quota)}"
    return size


def _sealed(sealing: dict[str, int]) -> str:
    left, lost = sealing["unsealed"], sealing["lost"]
    text = "everything"
    if left:
        text = f"{left:,} {'file is' if left == 1 else 'files are'} only in the directory"
    return text + (f", {output.plural(lost, 'old version')} lost" if lost else "")


def _sessions(counts: dict[str, int]) -> str:
    parts = [f"{count:,} {state}" for state, count in counts.items() if count]
    return ", ".join(parts) + (" (cowfs resume)" if counts.get("interrupted") else "")


def _collected(last: dict[str, Any]) -> str:
    why = {"quota": "to make room", "policy": "by the rules of retention"}.get(last["reason"], "")
    many = output.plural(last["checkpoints"], "checkpoint")
    if last["thinned"]:
        thinned = f"volatile paths of {output.plural(last['thinned'], 'checkpoint')}"
        many = f"{many} and {thinned}" if last["checkpoints"] else thinned
    what = f"{many} {why}".rstrip()
    freed = f"{output.size(last['freed_bytes'])} freed"
    return f"{what}, {freed}  {output.age(last['time'], time.time_ns())}"


def _last(record: dict[str, Any] | None) -> str:
    if record is None:
        return "no checkpoint yet"
    parts = [record["id"][:8], output.age(record["time"], time.time_ns())]
    if record["label"]:
        parts.append(f"({record['label']})")
    if record["message"]:
        parts.append(record["message"].partition("\n")[0])
    return "  ".join(parts)
