"""Pipelines as data: several stages, of one or several models, that answer one request together (docs/pipelines.md)."""
