"""Versions of the schema, each with its way from the one before."""
