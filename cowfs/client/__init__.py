"""Finding a workspace and talking to its daemon. Standard library only, and little of it.

A hook runs at every prompt, so `cowfs checkpoint` must cost little more than starting Python.
"""
