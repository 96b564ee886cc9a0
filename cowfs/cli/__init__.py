"""The command line: thin. One module for each command, imported when it is used.

`quick`, `reports` and `output` are on the path of `cowfs checkpoint` and `cowfs status`, and import
next to nothing.
"""
