"""Input that somebody made up: whatever it is, it ends in a documented error."""
