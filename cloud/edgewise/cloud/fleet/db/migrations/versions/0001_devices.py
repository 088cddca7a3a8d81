"""Tenants, devices, and what is asked of them and comes from them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _tenants()
    _devices()
    _shadows()
    _commands()
    _telemetry()


def _tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def _devices() -> None:
    op.create_table(
        "devices",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("folded", sa.String(length=256), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.String(length=200), nullable=False),
        sa.Column("state_at", sa.Float(precision=53), nullable=False),
        sa.Column("ep", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.Float(precision=53)),
        sa.Column("gone_at", sa.Float(precision=53)),
        sa.Column("expected_until", sa.Float(precision=53)),
        sa.Column("degraded", sa.String(length=200), nullable=False),
        sa.Column("birth_ep", sa.BigInteger(), nullable=False),
        sa.Column("birth_seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("version_key", sa.String(length=128), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("birth", sa.JSON(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("gauges", sa.JSON(), nullable=False),
        sa.Column("gauges_at", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("retired_at", sa.Float(precision=53)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        sa.PrimaryKeyConstraint("uid"),
    )
    op.create_index("devices_by_name", "devices", ["tenant_id", "folded", "uid"])
    op.create_index("ix_devices_state", "devices", ["state"])
    op.create_index("ix_devices_tenant_id", "devices", ["tenant_id"])
    op.create_table(
        "device_labels",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.Column("number", sa.Float(precision=53)),
        sa.ForeignKeyConstraint(["uid"], ["devices.uid"]),
        sa.PrimaryKeyConstraint("uid", "name"),
    )
    op.create_index("device_labels_by_value", "device_labels", ["name", "value"])
    op.create_table(
        "device_models",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("digest", sa.String(length=80)),
        sa.Column("loaded", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["uid"], ["devices.uid"]),
        sa.PrimaryKeyConstraint("uid", "name"),
    )
    op.create_index("device_models_by_name", "device_models", ["name"])
    op.create_index("ix_device_models_digest", "device_models", ["digest"])
    op.create_table(
        "groups",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("tenant_id", sa.String(length=26), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant_id", "name"),
    )


def _shadows() -> None:
    op.create_table(
        "shadows",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("shadow", sa.String(length=16), nullable=False),
        sa.Column("gen", sa.Integer(), nullable=False),
        sa.Column("desired", sa.JSON()),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("desired_at", sa.Float(precision=53)),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.Column("applied", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reported", sa.JSON()),
        sa.Column("edits", sa.JSON(), nullable=False),
        sa.Column("ep", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("reported_at", sa.Float(precision=53)),
        sa.ForeignKeyConstraint(["uid"], ["devices.uid"]),
        sa.PrimaryKeyConstraint("uid", "shadow"),
    )
    op.create_table(
        "shadow_past",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("shadow", sa.String(length=16), nullable=False),
        sa.Column("gen", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["uid"], ["devices.uid"]),
        sa.PrimaryKeyConstraint("uid", "shadow", "gen"),
    )


def _commands() -> None:
    op.create_table(
        "commands",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("tenant_id", sa.String(length=26), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("batch_id", sa.String(length=26)),
        sa.Column("key", sa.String(length=128)),
        sa.Column("op", sa.String(length=48), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("step", sa.String(length=200), nullable=False),
        sa.Column("percent", sa.Float(precision=53)),
        sa.Column("code", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("retryable", sa.Boolean(), nullable=False),
        sa.Column("result", sa.JSON()),
        sa.Column("ttl_s", sa.Float(precision=53)),
        sa.Column("total_s", sa.Float(precision=53)),
        sa.Column("step_s", sa.Float(precision=53)),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("ep", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("sent_at", sa.Float(precision=53)),
        sa.Column("cancel_at", sa.Float(precision=53)),
        sa.Column("changed_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        sa.ForeignKeyConstraint(["uid"], ["devices.uid"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uid", "key"),
    )
    op.create_index("commands_by_tenant", "commands", ["tenant_id", "id"])
    op.create_index("ix_commands_batch_id", "commands", ["batch_id"])
    op.create_index("ix_commands_state", "commands", ["state"])
    op.create_index("ix_commands_tenant_id", "commands", ["tenant_id"])
    op.create_index("ix_commands_uid", "commands", ["uid"])
    op.create_table(
        "command_steps",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("command_id", sa.String(length=26), nullable=False),
        sa.Column("message_id", sa.String(length=26)),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("step", sa.String(length=200), nullable=False),
        sa.Column("percent", sa.Float(precision=53)),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["command_id"], ["commands.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("message_id"),
    )
    op.create_index("ix_command_steps_command_id", "command_steps", ["command_id"])
    op.create_table(
        "command_logs",
        sa.Column("command_id", sa.String(length=26), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("lines", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["command_id"], ["commands.id"]),
        sa.PrimaryKeyConstraint("command_id", "part"),
    )


def _telemetry() -> None:
    op.create_table(
        "samples",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("samples_by_device", "samples", ["uid", "at"])
    op.create_index("samples_by_time", "samples", ["at"])
    op.create_table(
        "rollups",
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("span_s", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("total", sa.Float(precision=53), nullable=False),
        sa.Column("least", sa.Float(precision=53), nullable=False),
        sa.Column("most", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("uid", "name", "span_s", "at"),
        sqlite_with_rowid=False,
    )
    op.create_index("rollups_by_time", "rollups", ["span_s", "at"])
    op.create_table(
        "arrivals",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("until", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_arrivals_until", "arrivals", ["until"])
    op.create_table(
        "marks",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("tenant_id", sa.String(length=26), nullable=False),
        sa.Column("uid", sa.String(length=64)),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_by_tenant", "events", ["tenant_id", "id"])
    op.create_index("events_by_time", "events", ["at"])
    op.create_index("ix_events_uid", "events", ["uid"])
