"""Tokens of an answer that are guessed, and checked several at a time; the answer stays the same (docs/speculation.md)."""
