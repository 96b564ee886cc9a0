"""Killed daemons and power cuts: every reported fact is there, and what is there is one moment."""
