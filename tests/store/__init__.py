"""Tests of the store: lineages, snapshots, the writer, locks."""
