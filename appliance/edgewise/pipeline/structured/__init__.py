"""Answers held to a schema, an expression, a choice or a grammar: checked here, followed in the engine."""
