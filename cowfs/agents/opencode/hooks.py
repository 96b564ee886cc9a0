"""What OpenCode's plugin (cowfs.js) says: it is ours, and says what any program may.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents.generic.hooks import answer, directories, event

__all__ = ["answer", "directories", "event"]
