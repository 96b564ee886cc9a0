"""Random work, compared with what an ordinary file system makes of it.

`scripts/fuzz` runs it for long; the tests here run a little of it, and all that ever failed.
"""
