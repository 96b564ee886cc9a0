"""`cowfs mcp`: checkpoints for an agent, by the Model Context Protocol.

What needs the package `mcp` (the extra `cowfs-workspace[mcp]`, which takes most of a second to
import) is in `server.py` only.
"""
