"""Real agents, installed by scripts/clients, on a real mount, against a stub of their model."""
