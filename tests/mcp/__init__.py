"""`cowfs mcp`, used by a real client."""
