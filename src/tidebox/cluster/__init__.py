"""Several servers on one database: which nodes live, which are lost, and who takes over their work.

``membership`` is the interface that the broker knows, ``shared`` its implementation by beats in the store, ``lease``
the rules of time. It may import ``errors``, ``model`` and ``store.base``.
"""
