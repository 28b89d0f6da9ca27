"""What alembic runs migrations with: the connection, and the transaction, of whoever asked for them."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
