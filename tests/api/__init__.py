"""The Python API, on real mounts."""
