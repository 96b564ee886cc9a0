"""The daemon of one workspace: its threads, its control socket, its timers."""
