"""Tests of the adapter for codex."""
