"""Claude Code: conversations in its format, and its hooks."""
