"""Bytes to records and back. No I/O. The specification is docs/format.md."""
