"""Batching does not change an answer, and streaming does not change a text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.accept.line import Line, Verdict, main, progress
from tests.accept.prompts import prompts
from tests.e2e.client import Client, text_of, tokens_of
from tests.e2e.service import STARTER, running

PARALLEL = 16
TOKENS = 48
TOKENS_IN_BRIEF = (6, 12)  # at once and of a stream, for fewer than ten seeds
EXACT = ("--dtype", "float32", "--kv-dtype", "float32")


def batched_differences(client: Client, tokens: int) -> list[str]:
    """Prompts whose answer among 15 others is not that of a run alone. The fixed-seed ones sample, the rest are greedy."""
    questions = prompts(PARALLEL)

    def answer(index: int) -> list[int]:
        fields = {"temperature": 0.0 if index % 2 == 0 else 0.9, "seed": index, "return_token_ids": True}
        return tokens_of(client.chat(questions[index], max_completion_tokens=tokens, **fields))

    alone = [answer(index) for index in range(PARALLEL)]
    with ThreadPoolExecutor(PARALLEL) as pool:
        together = list(pool.map(answer, range(PARALLEL)))
    return [questions[index] for index in range(PARALLEL) if alone[index] != together[index]]


def stream_differences(client: Client, seeds: int, tokens: int) -> list[int]:
    """Seeds for which the joined text of a stream is not that of the plain answer. High temperature makes odd bytes."""
    differing = []
    for seed in range(seeds):
        fields = {"temperature": 1.5, "seed": seed, "max_completion_tokens": tokens}
        plain = client.chat("Write a line of emoji and a line of Chinese.", **fields)
        streamed = client.stream("Write a line of emoji and a line of Chinese.", **fields)
        same_end = streamed.finish_reason == plain["choices"][0]["finish_reason"]
        if text_of(plain) != streamed.text or not same_end:
            differing.append(seed)
    return differing


def measure(count: int) -> Verdict:
    tokens, of_stream = (TOKENS, TOKENS) if count >= 10 else TOKENS_IN_BRIEF
    with running(*EXACT) as service, Client(service.url, model=STARTER) as client:
        batched = batched_differences(client, tokens)
        progress(f"{PARALLEL} at once: {len(batched)} differ")
        streamed = stream_differences(client, count, of_stream)
    figure = f"{PARALLEL - len(batched)} of {PARALLEL} equal at once; {count - len(streamed)} of {count} seeds equal streamed"
    details = {"batched": batched, "streamed": streamed}
    return Verdict(figure=figure, passed=not batched and not streamed, details=details)


LINE = Line(
    number=3,
    title="16 different prompts at once give the answers of one-at-a-time runs; stream and plain text are equal",
    bar="16 of 16 equal, every seed equal",
    count=50,
    small=2,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.answers_3")
