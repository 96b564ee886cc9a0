"""The commands: a module for each, or for those that belong together (app.py lists them). What
several of them need is beside this folder.

Threading: a command runs in one thread.
"""
