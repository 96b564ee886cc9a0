"""The bars: which rows there are, and what meets them."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks import bars
from benchmarks.stats import Verdict
from benchmarks.workloads import WORKLOADS

TITLES = {workload.name: workload.title for workload in WORKLOADS}


def judge(
    ratios: Mapping[str, float],
    *,
    peers: float = 3.0,
    requests: float = 4.0,
    titles: Mapping[str, str] = TITLES,
    passes: tuple[str, ...] = ("pinned", "free"),
) -> dict[str, Verdict]:
    """*ratios*: cowfs to native by workload, 1 where it is not named."""

    def value(one: str, step: str, target: str, base: str) -> float | None:
        if target in bars.PEERS:
            assert base == "cowfs"
            return peers
        assert (target, base) == ("cowfs", "native")
        return ratios.get(step, 1.0)

    targets = ["native", "cowfs", *bars.PEERS]
    found = bars.of_files(value, lambda one, step: requests, passes, targets, dict(titles))
    rows = {verdict.what: verdict for verdict in found}
    assert len(rows) == len(found), "two rows have one name"
    return rows


def missed(rows: Mapping[str, Verdict]) -> set[str]:
    return {what for what, verdict in rows.items() if not verdict.met}


def test_every_workload_of_a_bar_exists() -> None:
    named = {*bars.METADATA, *bars.WARM_READS, *bars.SPEEDS, bars.CACHED_READ}
    assert named <= set(TITLES)


def test_all_is_met_by_a_filesystem_as_fast_as_native() -> None:
    rows = judge({})
    assert not missed(rows)
    assert rows["metadata, geometric mean (pinned)"].value == 1.0


def test_the_mean_of_metadata() -> None:
    at_limit = dict.fromkeys(bars.METADATA, 4.0)
    assert not missed(judge(at_limit))
    assert missed(judge(at_limit | {"untar": 4.5})) == {"metadata, geometric mean (pinned)"}


def test_one_that_is_slow_is_named() -> None:
    assert missed(judge({"rm-rf": 8.5})) == {"metadata, slowest: rm -rf (pinned)"}


def test_ahead_of_the_peers_but_not_by_enough() -> None:
    assert missed(judge({}, peers=1.5)) == {
        f"metadata, {peer} / cowfs, geometric mean ({one})"
        for peer in bars.PEERS
        for one in ("pinned", "free")
    }


def test_behind_the_peers() -> None:
    titles = {"untar": "untar"}
    assert missed(judge({}, peers=0.9, titles=titles, passes=("free",))) == {
        f"metadata, {peer} / cowfs, least: untar (free)" for peer in bars.PEERS
    }


def test_speeds_are_shares_of_native() -> None:
    rows = judge({"seq-write": 2.0, "seq-read": 1.1})
    assert rows["sequential write + fsync (pinned)"].value == 0.5
    assert missed(rows) == {"sequential read, warm (pinned)"}


def test_warm_reads() -> None:
    assert not missed(judge({"grep-warm": 2.0}))
    assert missed(judge({"grep-warm": 2.1})) == {"grep -r, warm (pinned)"}


def test_reads_that_reach_the_daemon() -> None:
    assert missed(judge({}, requests=2048)) == {"sequential read, warm: requests"}


def test_a_part_of_the_workloads_has_no_mean() -> None:
    rows = judge({}, titles={"untar": "untar"}, passes=("pinned",))
    assert set(rows) == {
        "metadata, slowest: untar (pinned)",
        "metadata, bindfs / cowfs, least: untar (pinned)",
        "metadata, fuse-overlayfs / cowfs, least: untar (pinned)",
    }


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    found = bars.of_files(
        lambda *names: None, lambda *names: None, ["pinned"], ["cowfs", "bindfs"], TITLES
    )
    assert found
    assert {verdict.met for verdict in found} == {None}
