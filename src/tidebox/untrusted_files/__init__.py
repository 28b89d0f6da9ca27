"""Untrusted files: names, archives (tar, zip), glob and ignore patterns, directory trees of users and programs.

Nothing in them is believed: they are reached through directory descriptors (``openat2``), symbolic links are never
followed, and sizes, counts and matching time are bounded. May import ``errors`` and nothing else of ours.
"""
