"""What went wrong in comparable systems, by number, each with the value that is right here."""
