"""The audit log: append-only files of who did what to which sandbox or run, and how it ended.

Every other package of the broker writes to it; administrators search it. It may import ``model`` and ``errors``, and
nothing else of the broker.
"""
