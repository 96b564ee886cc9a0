"""The volume without FUSE: POSIX semantics, history, the base directory."""
