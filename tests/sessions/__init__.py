"""Sessions of agents: what is kept of them, and how they go on."""
