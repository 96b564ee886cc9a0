"""Benchmarks of cowfs: file workloads against other filesystems; epochs against size and history.

Only the standard library is used, and nothing of the ``cowfs`` package is imported, so that a
benchmark measures the installed command as a user runs it. Run with ``scripts/bench``.
"""
