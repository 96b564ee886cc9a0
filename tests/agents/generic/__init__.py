"""Tests of the adapter for generic."""
