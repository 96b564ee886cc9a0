"""Who did it: reading the audit log, telling it, and finding who changed a file last."""
