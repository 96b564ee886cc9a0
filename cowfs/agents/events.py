"""The moments in an agent's work at which cowfs does something, whatever the agent calls them.

An event is a plain dict, so that a hook gets it to the daemon without importing anything: the
parameters of the method `session.event` (docs/protocol.md).

Threading: constants.
"""

SESSION_START = "session-start"
PROMPT = "prompt"
"""The user has asked for something; the agent has not begun."""
TOOL_START = "tool-start"
TOOL_END = "tool-end"
SUBAGENT_START = "subagent-start"
SUBAGENT_END = "subagent-end"
COMPACTION = "compaction"
"""The agent is about to make its conversation shorter."""
TURN_END = "turn-end"
SESSION_END = "session-end"

EVENTS = (
    SESSION_START,
    PROMPT,
    TOOL_START,
    TOOL_END,
    SUBAGENT_START,
    SUBAGENT_END,
    COMPACTION,
    TURN_END,
    SESSION_END,
)
