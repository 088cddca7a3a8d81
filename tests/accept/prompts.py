"""Prompts for acceptance lines: short, different in kind, in plain language."""

from __future__ import annotations

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three fruits that are red.",
    "How does a bicycle stay upright?",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Explain what a thermostat does to a child.",
    "Write a short poem about rain.",
    "Which planet is closest to the sun?",
    "Give me a recipe for tomato soup.",
    "Why is the sky blue?",
    "List the days of the week.",
    "Who wrote Romeo and Juliet?",
    "Describe a quiet street at night.",
    "What does a carpenter need for his work?",
    "Summarize: The cat sat on the mat and slept all day.",
    "Write a Python function that adds two numbers.",
    "What is the difference between weather and climate?",
    "Tell me a story about a lighthouse keeper.",
    "How many legs does a spider have?",
)


def prompts(count: int) -> list[str]:
    """That many different prompts; beyond the list they are numbered variants."""
    return [
        PROMPTS[index] if index < len(PROMPTS) else f"({index}) {PROMPTS[index % len(PROMPTS)]}"
        for index in range(count)
    ]
