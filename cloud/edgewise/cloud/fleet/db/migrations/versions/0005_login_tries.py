"""Wrong passwords, counted in the database."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "login_tries",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("tries", sa.JSON(), nullable=False),
        sa.Column("until", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_login_tries_until", "login_tries", ["until"])
