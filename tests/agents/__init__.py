"""What cowfs knows of agents, against conversations in their formats. No mount."""
