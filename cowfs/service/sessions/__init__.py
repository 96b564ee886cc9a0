"""Sessions of agents: who they are, what a checkpoint keeps of them, and how they go on.

Threading: see the modules.
"""
