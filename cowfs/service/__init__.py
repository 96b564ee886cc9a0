"""Use cases on a workspace: what commands and the daemon do, without printing or asking."""
