"""The command line: thin. The commands are in commands/, imported when they are used; here is what
several of them need.

`quick`, `reports` and `output` are on the path of `cowfs checkpoint` and `cowfs status`, and import
next to nothing.
"""
