"""Desired and reported state: a document for each shadow, applied whole or not at all."""
