"""Which tokens may follow: beside transformers' own processors, over random texts, and the rule of the group in the sampler."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from edgewise.kernels.sample import RowControls, sample
from edgewise.models.whisper.config import WhisperTokens
from edgewise.models.whisper.rules import TokenRules, read_rules, rules_text

END, FIRST_TIME, VOCABULARY = 20, 26, 60
TOKENS = WhisperTokens(
    end=END,
    start=21,
    previous=22,
    no_speech=24,
    no_times=25,
    first_time=FIRST_TIME,
    languages={},
    transcribe=None,
    translate=None,
    suppressed=(3, 22),
    suppressed_first=(5, END),
    first_time_limit=10,
)


def rules(*, times: bool) -> TokenRules:
    found = read_rules(rules_text(TOKENS, VOCABULARY, times=times))
    assert found is not None
    return found


def permitted(answer: list[int], *, times: bool = True) -> set[int]:
    bits = np.frombuffer(rules(times=times).permitted(answer), dtype=np.uint8)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:VOCABULARY]).tolist())


def test_a_grammar_is_not_taken_for_rules() -> None:
    assert read_rules('{"grammars": []}') is None


def test_control_tokens_are_never_written() -> None:
    for answer in ([], [1], [FIRST_TIME], [FIRST_TIME, 1, FIRST_TIME + 2]):
        for times in (True, False):
            assert not permitted(answer, times=times) & {3, *range(END + 1, FIRST_TIME)}


def test_without_times_there_are_none_and_text_begins_with_a_word() -> None:
    assert permitted([], times=False) == set(range(END)) - {3, 5}
    assert permitted([1], times=False) == set(range(END + 1)) - {3}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_times_follow_the_rules_of_transformers(data: st.DataObject) -> None:
    answer: list[int] = []
    for _ in range(data.draw(st.integers(0, 8))):
        answer.append(data.draw(st.sampled_from(sorted(permitted(answer)))))
        if answer[-1] == END:
            answer.pop()
    configured: Any = GenerationConfig
    config = configured(eos_token_id=END, no_timestamps_token_id=25, max_initial_timestamp_index=10)
    made: Any = WhisperTimeStampLogitsProcessor
    theirs = made(config, begin_index=1)
    seed = data.draw(st.integers(0, 1000))
    scores = torch.randn((1, VOCABULARY), generator=torch.Generator().manual_seed(seed)) * 2
    scores[:, [3, 22, *range(END + 1, FIRST_TIME)]] = -math.inf
    if not answer:
        scores[:, [5, END]] = -math.inf
    expected = theirs(torch.tensor([[21, *answer]]), scores.clone())[0]
    control = RowControls(allowed=rules(times=True).permitted(answer), group_from=FIRST_TIME)
    assert sample(scores, [control])[0].token == int(expected.argmax())


def test_times_win_together() -> None:
    logits = torch.full((1, VOCABULARY), -5.0)
    logits[0, 7], logits[0, FIRST_TIME:] = 1.0, -2.0  # 34 times of e^-2 are more than one e^1
    (draw,) = sample(logits, [RowControls(group_from=FIRST_TIME)])
    assert draw.token >= FIRST_TIME
    (draw,) = sample(logits, [RowControls()])
    assert draw.token == 7
    logits[0, 7] = 2.0
    (draw,) = sample(logits, [RowControls(group_from=FIRST_TIME)])
    assert draw.token == 7


@pytest.mark.parametrize("answer", [[FIRST_TIME + 3, 1, FIRST_TIME + 5], [FIRST_TIME + 5, 1]])
def test_times_never_go_back(answer: list[int]) -> None:
    times = {token for token in permitted(answer) if token >= FIRST_TIME}
    assert min(times) >= FIRST_TIME + 5
