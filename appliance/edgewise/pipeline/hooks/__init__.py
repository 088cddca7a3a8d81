"""Hooks: plug-ins that see prompts before a model does, answers before their caller does, and who asked what (audit)."""
