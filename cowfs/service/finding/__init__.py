"""Finding what was lost: what became of a path, where a name is or was, what broke a test."""
