"""Greedy answers through the REST API equal those of transformers on the same weights, token for token."""

from __future__ import annotations

from tests.accept.line import Line, Verdict, main, progress
from tests.accept.prompts import prompts
from tests.accept.reference import Reference
from tests.e2e.client import Client, tokens_of
from tests.e2e.service import STARTER, running, starter_model

TOKENS = 64
TOKENS_IN_BRIEF = 16  # for fewer than ten prompts
EXACT = ("--dtype", "float32", "--kv-dtype", "float32")


def measure(count: int) -> Verdict:
    questions, tokens = prompts(count), TOKENS if count >= 10 else TOKENS_IN_BRIEF
    with running(*EXACT) as service, Client(service.url, model=STARTER) as client:
        fields = {"temperature": 0, "max_completion_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        answers = [tokens_of(client.chat(question, **fields)) for question in questions]
    progress(f"{count} answers received; now transformers")
    (path,) = starter_model().paths.values()
    reference = Reference(path)
    differing = []
    for question, answer in zip(questions, answers, strict=True):
        expected = reference.greedy(reference.chat_prompt(question), tokens)
        if answer != expected:
            pairs = zip(answer, expected, strict=False)
            first = next((index for index, (got, wanted) in enumerate(pairs) if got != wanted), len(answer))
            differing.append({"prompt": question, "first_difference": first, "got": answer, "expected": expected})
    figure = f"{count - len(differing)} of {count} equal, {tokens} tokens each"
    return Verdict(figure=figure, passed=not differing, details={"differing": differing})


LINE = Line(
    number=2,
    title="Greedy tokens through the REST API equal transformers' on the same weights (float32 weights and KV)",
    bar=f"all equal, {TOKENS} tokens each",
    count=20,
    small=2,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_2")
