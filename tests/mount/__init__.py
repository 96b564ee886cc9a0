"""Tests on a real mount: system calls, checkpoints and restores under running processes, lives."""
