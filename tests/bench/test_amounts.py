"""The report on amounts: which bars it holds, and when it cannot say."""

from __future__ import annotations

import os

from benchmarks.epochs.amounts import AmountsReport, Memory
from benchmarks.epochs.collecting import Pauses
from benchmarks.stats import Verdict


def verdicts(report: AmountsReport) -> dict[str, Verdict]:
    return {verdict.what: verdict for verdict in report.verdicts()}


def full_report() -> AmountsReport:
    report = AmountsReport(files=100_000, rounds=3, idle_percent=0.01)
    report.changed[100] = [0.010, 0.012, 0.030]
    report.changed[10_000] = [1.5, 1.2, 1.1]
    for mib, mine, native in ((0, 0.002, 0.001), (100, 0.150, 0.100)):
        report.dirty[mib] = [mine]
        report.native[mib] = [native]
    report.memory["after walking"] = Memory(resident=149.0, anonymous=60.0)
    return report


def test_bars_of_a_full_run() -> None:
    words = {what: verdict.word for what, verdict in verdicts(full_report()).items()}
    assert words == {
        "restore of 100 changed among 100,000 (daemon)": "met",
        "restore of 10,000 changed among 100,000 (daemon)": "MISSED",
        "checkpoint with 100 MiB dirty / native fsync of it": "met",
        "daemon's memory after walking 100,000 files": "met",
        "idle CPU": "met",
    }
    assert full_report().text()
    assert full_report().document()["idle_percent"] == 0.01


def test_a_small_run_says_nothing_about_large_bars() -> None:
    report = full_report()
    report.files = 1000
    del report.dirty[100], report.native[100], report.changed[10_000]
    found = verdicts(report)
    assert found["checkpoint with 100 MiB dirty / native fsync of it"].met is None
    assert found["daemon's memory after walking 1,000 files"].met is None
    assert set(found) == {
        "restore of 100 changed among 1,000 (daemon)",
        "checkpoint with 100 MiB dirty / native fsync of it",
        "daemon's memory after walking 1,000 files",
        "idle CPU",
    }


def test_memory_of_a_process_is_what_the_kernel_says() -> None:
    memory = Memory.of(os.getpid())
    assert 0 < memory.anonymous <= memory.resident


def test_the_longest_pause_counts() -> None:
    pauses = Pauses([0.001] * 1000 + [0.06], [0.2], removed=7)
    verdict = pauses.verdict()
    assert (verdict.value, verdict.met) == (60.0, False)
    assert Pauses([0.049]).verdict().met
    assert Pauses().verdict().met is None
    assert "60.00 ms" in pauses.text()
