"""The tests. Run them with scripts/test."""
