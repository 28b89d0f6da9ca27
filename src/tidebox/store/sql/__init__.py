"""The store in a database, by one SQLAlchemy Core schema: SQLite in a file or in memory, or PostgreSQL.

``store`` loads the rest late, because the database layer takes longer to load than all else of a server; ``database``
runs operations on threads, and each other module has the operations on one kind of row. It may import ``errors``,
``model`` and ``store.base``.
"""
