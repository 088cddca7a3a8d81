"""Claim codes whose devices get a key for the cloud engine."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("claim_codes", sa.Column("cloud", sa.Boolean(), nullable=False, server_default=sa.false()))
