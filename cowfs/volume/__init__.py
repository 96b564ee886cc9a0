"""POSIX semantics on (view, ino): synchronous, without FUSE or sockets, testable alone.

Threading: everything below a `Volume` belongs to one owner thread (the FUSE thread of a daemon,
the only thread of an offline command), so each operation is atomic. Other threads hand the owner a
function to run. The writer thread sees only frozen transaction groups.
"""
