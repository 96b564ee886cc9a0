"""The program behind scripts/demo: cowfs' main job on a real project, checked without cowfs.

It uses the standard library and the `cowfs` command only, so that what it proves does not rest
on the code that it tests.
"""
