"""What agents run at each step: `cowfs hook`, and how agents are told to run it.

`run` and what it imports must be light: agents wait for it at every prompt and every tool call.
"""
