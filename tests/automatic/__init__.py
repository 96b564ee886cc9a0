"""Tests of the configuration and of automatic checkpoints."""
