"""Tests of removing checkpoints and of collecting garbage."""
