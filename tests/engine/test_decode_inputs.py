"""The tensors of a step that only decodes are those that any step has, whatever was kept from the step before."""

from __future__ import annotations

import random

import torch

from edgewise.engine.decode_inputs import DecodeInputs, is_plain
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.runner import Runner
from edgewise.engine.scheduler import Work
from edgewise.engine.sequence import Sequence
from edgewise.kernels.paging import PAGE_TOKENS


def sequence(name: int, length: int, pages: list[int]) -> Sequence:
    request = GenerateRequest(id=str(name), prompt=(1,), sampling=SamplingParams(max_tokens=9999, temperature=0.0))
    made = Sequence.of(request, arrival=name, now=0.0)
    made.tokens = [random.Random(name).randrange(1000) for _ in range(length)]
    made.computed, made.pages = length - 1, pages
    return made


def decode(one: Sequence) -> Work:
    return Work(one, one.computed, 1, sample=True)


def test_they_are_those_of_any_step_while_pages_come_go_and_are_exchanged() -> None:
    rng = random.Random(5)
    runner = Runner(None, (), torch.device("cpu"))  # type: ignore[arg-type]  # no network is asked
    inputs, live = DecodeInputs(), [sequence(n, 40 + n, [rng.randrange(99) for _ in range(4)]) for n in range(5)]
    for _ in range(200):
        one = rng.choice(live)
        match rng.randrange(4):
            case 0:
                one.tokens.append(rng.randrange(1000))
                one.computed += 1
                while len(one.pages) * PAGE_TOKENS < len(one.tokens):
                    one.pages.append(rng.randrange(99))
            case 1:
                one.pages[rng.randrange(len(one.pages))] = rng.randrange(99)  # moved while it was preempted
            case 2:
                one.pages[:] = [*one.pages, rng.randrange(99)][-len(one.pages) - rng.randrange(2) :]
            case _:
                rng.shuffle(live)
        work = [decode(each) for each in live[: rng.randrange(1, 6)]]
        tokens, meta = inputs.of(work)
        wanted = runner._meta(work)
        assert is_plain(work)
        assert tokens.tolist() == runner._tokens(work).tolist()
        assert (meta.query_lens, meta.context_lens) == (wanted.query_lens, wanted.context_lens)
        for name in ("positions", "slots", "block_tables"):
            ours, theirs = getattr(meta, name), getattr(wanted, name)
            assert ours.dtype == theirs.dtype
            assert ours.is_contiguous()
            assert ours.tolist() == theirs.tolist(), name


def test_a_chunk_a_guess_and_a_prompt_that_goes_on_are_no_plain_decodes() -> None:
    one = sequence(0, 20, [3, 4])
    assert is_plain([decode(one)])
    assert not is_plain([decode(one), Work(one, 0, 2, sample=True)])
    assert not is_plain([Work(one, 19, 1, sample=False)])
    assert not is_plain([Work(one, 19, 2, sample=True, proposed=(7,))])
