"""Checkpoints in a git repository: commits of a branch of their own, notes on a user's commits."""
