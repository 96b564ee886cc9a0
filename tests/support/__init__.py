"""Helpers of the tests: a model of POSIX, volumes, mounts, and looking at trees from outside."""
