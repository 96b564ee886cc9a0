"""What people touch: the command line. Imports nothing here, commands start fast."""
