"""Reading history: trees, diff, patch, export, timeline."""
