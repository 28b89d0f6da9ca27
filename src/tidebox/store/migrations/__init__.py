"""Migrations of the SQL store's schema, run by alembic when a database is opened.

Each step is a file in ``versions`` and is never changed once released; the schema they end in is that of
``store.sql.schema``, which a test compares. They import nothing of ours but names of columns that never change.
"""
