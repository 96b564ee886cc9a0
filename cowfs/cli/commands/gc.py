"""`cowfs gc`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place
from cowfs.errors import UsageError

if TYPE_CHECKING:
    from cowfs.service.config import Retention

_SHOWN = 20
_RULES = ("last", "hourly", "daily", "weekly", "days", "rescue")


@command(
    "gc",
    examples=[
        ("cowfs gc", "remove what the policy does not keep, and free its room"),
        ("cowfs gc --dry-run", "say what would be removed, why, and how much it frees"),
        ("cowfs gc --keep-last 20 --keep-daily 14", "by other rules than those of `cowfs config`"),
        ("cowfs gc --no-policy", "only free what `cowfs forget` removed"),
    ],
)
@click.argument("directory", metavar="[DIR]", required=False, type=Directory())
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@click.option("--keep-last", type=click.IntRange(0), metavar="N", help="Keep the newest N.")
@click.option("--keep-hourly", type=click.IntRange(0), metavar="N", help="The last of N hours.")
@click.option("--keep-daily", type=click.IntRange(0), metavar="N", help="The last of N days.")
@click.option("--keep-weekly", type=click.IntRange(0), metavar="N", help="The last of N weeks.")
@click.option("--keep-days", type=click.IntRange(0), metavar="N", help="All of the last N days.")
@click.option(
    "--keep-rescue",
    type=click.IntRange(0),
    metavar="N",
    help="Rescue checkpoints of the last N days (7).",
)
@click.option("--no-policy", is_flag=True, help="Remove no checkpoint.")
@click.option("--idle", is_flag=True, help="Wait while others use the mount.")
def gc(
    context: Context,
    directory: str | None,
    dry_run: bool,
    no_policy: bool,
    idle: bool,
    **keep: int | None,
) -> None:
    """Remove checkpoints that no rule keeps, and free what only they showed.

    The rules are those of `cowfs config` (retention), or the ones that are given, and only those: a
    checkpoint stays if one of them keeps it. Pinned and labelled ones stay, and the newest; one
    that somebody looks into below .cowfs stays until a later run. Unless --no-policy is given, old
    ones lose what files in volatile paths contain (`cowfs config volatile.keep_days`); names and
    sizes stay. The workspace stays usable. Interrupt it at any time: what was removed stays
    removed, and the next run goes on from there.
    """
    place = context.locate(directory)
    given = {name: keep[f"keep_{name}"] for name in _RULES if keep[f"keep_{name}"] is not None}
    if given and no_policy:
        raise UsageError(detail="rules and --no-policy exclude each other", command="gc")
    rules = None if no_policy else _rules(place, given)
    with ProgressLine() as line:

        def show(params: dict[str, Any]) -> None:
            done, total = params.get("done", 0), params.get("total")
            line.step(f"collecting {params.get('phase', '')}", done, total)

        if dry_run:
            done = _foresee(place, rules, show)
        else:
            done = _clean(place, rules, idle, show)
    done["dry_run"] = dry_run
    context.answer(done, _text(done))


def _rules(place: Place, given: dict[str, int | None]) -> Retention:
    """Raises ConfigError: a rule that cannot be read may be one that keeps something."""
    from dataclasses import replace

    from cowfs.service import config, settings

    found = config.read(Path(place.store))
    if not given:
        if found.problems:
            raise found.problems[0]
        return found.retention
    numbers: dict[str, Any] = {f"keep_{name}": given.get(name) or 0 for name in _RULES}
    if "rescue" not in given:
        numbers["keep_rescue"] = settings.SETTINGS["retention.keep_rescue"].default
    return replace(found.retention, **numbers)


def _foresee(place: Place, rules: Retention | None, show: opening.Progress) -> dict[str, Any]:
    from cowfs.service.housekeeping import foresee

    with opening.reading(place, need_base=False) as workspace:
        return foresee(workspace.reader, rules, lambda **params: show(params)).to_json()


def _clean(
    place: Place, rules: Retention | None, idle: bool, show: opening.Progress
) -> dict[str, Any]:
    daemon = opening.connect(place)
    if daemon is not None:
        from dataclasses import asdict

        numbers = asdict(rules) if rules is not None else None
        if numbers is not None:
            del numbers["profile"]
        with daemon:
            answer: dict[str, Any] = daemon.call("gc", {"rules": numbers, "idle": idle}, show)
            return answer
    from cowfs.service.collecting import Pace
    from cowfs.service.housekeeping import clean

    with opening.writing(place) as engine:
        progress = lambda **params: show(params)  # noqa: E731
        return clean(engine, nullcontext(), rules, Pace(), progress, thorough=True).to_json()


def _text(done: dict[str, Any]) -> str:
    dry, removed, found = done["dry_run"], done["removed"], done["collected"]
    lines = [checkpoint_line(row) for row in removed[:_SHOWN]]
    if len(removed) > _SHOWN:
        lines.append(f"  and {len(removed) - _SHOWN:,} more")
    what = output.plural(len(removed), "checkpoint")
    lines.append(f"{'would remove' if dry else 'removed'} {what}; {done['kept']:,} are kept")
    if done["browsed"]:
        many = output.plural(done["browsed"], "more checkpoint")
        lines.append(f"somebody looks into {many} that no rule keeps; a later run looks again")
    blocks = output.plural(found["blocks"], "block")
    lines.append(
        f"{'would free' if dry else 'freed'} {output.size(found['bytes'])} in {blocks}, "
        f"and {output.plural(found['versions'], 'record')}"
    )
    if done["thinned"]:
        many = output.plural(len(done["thinned"]), "checkpoint")
        what = "would be" if dry else "were"
        lines.append(f"contents of volatile paths {what} thinned in {many} (marked in `cowfs log`)")
    if found["left"]:
        lines.append("something that is open, or damaged, keeps more; the next run looks again")
    elif not found["complete"]:
        lines.append("not finished; the next run goes on")
    return "\n".join(output.printable(line) for line in lines)


def checkpoint_line(row: dict[str, Any]) -> str:
    """One checkpoint that goes."""
    import time

    name = f" ({row['label']})" if row["label"] else ""
    reason = f": {row['reason']}" if row.get("reason") else ""
    text = f"  {row['message']}" if row["message"] else ""
    return f"  {row['id'][:8]}  {output.age(row['time'], time.time_ns())}{name}{text}{reason}"
