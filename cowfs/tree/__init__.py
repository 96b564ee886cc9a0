"""Pure algorithms on snapshots of the store."""
