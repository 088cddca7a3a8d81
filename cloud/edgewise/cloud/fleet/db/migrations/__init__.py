"""Alembic's environment and versions: how each schema becomes the next."""
