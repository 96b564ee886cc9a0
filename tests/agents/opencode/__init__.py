"""Tests of the adapter for opencode."""
