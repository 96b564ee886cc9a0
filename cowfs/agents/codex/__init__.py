"""Codex CLI: its rollouts, their copies, its hooks."""
