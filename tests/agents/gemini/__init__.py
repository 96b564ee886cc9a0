"""Tests of the adapter for gemini."""
