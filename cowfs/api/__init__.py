"""cowfs for Python programs (docs/api.md): `cowfs.Workspace` and what it answers.

Like the command line it finds workspaces, talks to the daemon of a mounted one, and opens the store
of one that is not; like the command line it knows the environment and the home directory. It prints
nothing.

Importing this package imports nothing: the command line uses its modules, too.
"""
