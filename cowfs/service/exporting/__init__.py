"""The two forms of an export: a directory and a tar archive."""
