"""OpenCode: the plugin that reports what it does, its conversations and their copies."""
