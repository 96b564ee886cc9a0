"""Gemini CLI: its chats and its hooks."""
