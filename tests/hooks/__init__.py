"""Hooks of agents: what they record, what they say, how they are installed."""
