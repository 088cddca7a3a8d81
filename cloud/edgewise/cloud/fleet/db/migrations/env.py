"""Run by Alembic, which loads it by path: `db.migrate` hands over the connection."""

from alembic import context

from edgewise.cloud.fleet.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,  # in the transaction of `db.migrate`, on SQLite too
    render_as_batch=True,  # SQLite changes a table by making it anew
)
with context.begin_transaction():
    context.run_migrations()
