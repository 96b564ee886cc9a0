"""Benchmarks of cowfs, beside a plain directory and what else does the same work.

Only the standard library is used, and of the ``cowfs`` package nothing but the socket's client, for
making long histories fast: what is measured is the installed command, as a user runs it. Run with
``scripts/bench``.
"""
