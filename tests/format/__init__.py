"""Tests of bytes to records and back."""
