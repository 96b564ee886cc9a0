"""What the workloads work on: fetched once with the machine's own pip and npm, then cached.

Every name is pinned, so that figures of different days are of the same files. No registry is named
here: pip and npm know theirs. What cannot be had leaves a reason, and the workloads that need it
are skipped with that reason.
"""
