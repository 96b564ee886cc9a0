"""Cursor: its transcripts and its hooks."""
