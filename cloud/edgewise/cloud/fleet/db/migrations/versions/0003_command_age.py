"""Commands by their last change: those that are kept no longer."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("commands_by_time", "commands", ["changed_at"])
