"""Alembic's entry: the connection that `migrate` gives → the migrations that are due."""

from alembic import context

from app.coordinator.db import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
