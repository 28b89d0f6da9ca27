"""The store: everything that must survive a restart, behind one interface (``base``).

It keeps runs, sessions, bindings, idempotency keys and nodes; each step of one is a compare-and-set. It may import
``errors`` and ``model`` alone: rules live there, and users of the store know only ``base``.
"""
