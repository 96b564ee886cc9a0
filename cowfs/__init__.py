"""cowfs: a copy-on-write workspace filesystem that records every change.

The package imports nothing at this level: hooks and `cowfs checkpoint` start in
milliseconds only while `import cowfs` stays free.
"""

__version__ = "0.1.0"
