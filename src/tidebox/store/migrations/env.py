"""The environment in which alembic runs migrations: the connection, and the transaction, of the caller."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
