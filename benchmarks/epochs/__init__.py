"""What checkpoints and restores cost cowfs, by everything that they might depend on."""
