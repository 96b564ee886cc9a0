"""Real programs working on a mount. Each module needs one tool and is skipped without it."""
