"""The domain model: runs, sessions, sandboxes, limits, policy, egress and packages as immutable data with their rules.

No I/O, no clock, no configuration: all other parts use these types. May import ``errors`` and nothing else of ours.
"""
