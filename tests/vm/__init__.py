"""A whole Debian machine in QEMU: the integrity tests inside, and cuts of its power."""
