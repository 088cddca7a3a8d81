"""The whole way of a spoken answer beside transformers: text, codec tokens and sound of the same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.core.errors import InvalidRequest, QueueFull
from edgewise.engine.config import EngineConfig
from edgewise.engine.core import Guarded, HoldsPages, Limited
from edgewise.engine.engine import Engine
from edgewise.engine.omni.answer import Answer
from edgewise.engine.omni.build import build
from edgewise.engine.omni.engine import OmniEngine
from edgewise.engine.omni.stages import SpeechStages
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.scheduler import Work
from edgewise.engine.speech import Speech
from edgewise.kernels.sample import Draw
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import place
from edgewise.models.multimodal.media import Media
from edgewise.models.omni.code2wav import noise
from edgewise.models.omni.config import read_omni
from edgewise.models.omni.layout import OmniLayout
from tests.models.omni.small import AUDIO, AUDIO_END, AUDIO_START, VOICES, folder, small_omni
from tests.models.omni.test_thinker import heard_by
from tests.models.omni.test_thinker import noise as noise_of

PROMPT = (5, 17, 100, 42, 9, 250, 33)
TOKENS = 9
SEED = 7


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    model = small_omni()
    return model, folder(model, tmp_path_factory.mktemp("omni"))


def engine_of(files: ModelFiles, **sampling: float) -> OmniEngine:
    config = EngineConfig(
        model=files,
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=4 << 20,
        max_context=512,
        max_running=4,
        threads=1,
        memory_budget_bytes=2 << 30,
    )
    engine = build(config, lambda stage, done: None)
    assert isinstance(engine, OmniEngine)
    engine._stages.most_codes = 60
    if sampling:
        engine._stages._sampling = {**engine._stages._sampling, **sampling}
    return engine


def asked(name: str = "a", voice: str | None = VOICES[0], tokens: int = TOKENS, **more: Any) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        prompt=more.pop("prompt", PROMPT),
        sampling=SamplingParams(max_tokens=tokens, temperature=0.0, seed=SEED),
        speech=None if voice is None else Speech(voice=voice, seed=SEED),
        **more,
    )


def _masked(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """transformers 5.24 drops a mask that hides nothing, and its Talker, which asks for one, then leaves out the first codec
    tokens. This gives it one."""
    del module
    fresh = 1 if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"].shape[1]
    length = kwargs["cache"].get_seq_length() + fresh
    return args, {**kwargs, "attention_mask": torch.ones(1, length, dtype=torch.long)}


def run(engine: OmniEngine, *requests: GenerateRequest) -> dict[str, list[TokenChunk]]:
    for request in requests:
        engine.add(request)
    found: dict[str, list[TokenChunk]] = {request.id: [] for request in requests}
    while engine.has_work:
        for chunk in engine.step():
            found[chunk.request_id].append(chunk)
    return found


def text_of(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


def sound_of(chunks: Sequence[TokenChunk]) -> Any:
    return np.concatenate([np.frombuffer(chunk.sound.samples, np.int16) for chunk in chunks if chunk.sound])


@pytest.mark.parametrize("heard", [False, True])
def test_text_codes_and_sound_are_those_of_transformers(
    both: tuple[Any, ModelFiles], monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """Greedily, with the same noise, after text alone and after a recording; the sound within 1 % of full scale, for it was made
    in chunks and rounded."""
    model, files = both
    prompt: list[int] = list(PROMPT)
    media: tuple[Media, ...] = ()
    given: dict[str, Any] = {}
    if heard:
        layout, samples = read_layout(files), noise_of(0.8, 7)
        assert isinstance(layout, OmniLayout)
        (recording,) = layout.sound(samples, "audio").media
        prompt = [5, AUDIO_START, *[AUDIO] * recording.count, AUDIO_END, 9, 250]
        media = place(prompt, [recording], layout.placeholders)
        given = heard_by([samples])
    chunks = run(engine_of(files, temperature=0.0), asked(voice="Ben", prompt=tuple(prompt), media=media))["a"]
    dit = read_omni(files).dit
    monkeypatch.setattr(torch, "randn", lambda shape, **_: noise(dit, SEED, 0, shape[1])[None].clone())
    hook = model.talker.register_forward_pre_hook(_masked, with_kwargs=True)
    sequences, wave = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        speaker="Ben",
        thinker_max_new_tokens=TOKENS,
        thinker_do_sample=False,
        thinker_eos_token_id=None,
        talker_do_sample=False,
        talker_max_new_tokens=60,
        talker_eos_token_id=[72, 74],
        talker_bad_words_ids=[[75], [76], [77], [78], [79]],
        **given,
    )
    hook.remove()
    assert text_of(chunks) == sequences[0, len(prompt) :].tolist()
    speech = chunks[-1].stats.speech  # type: ignore[union-attr]
    assert speech is not None
    own = sound_of(chunks)
    assert len(own) == len(wave) > 0
    assert speech.codec_tokens * 2 * 15 == len(wave)
    assert wave.std() > 0.05
    assert np.abs(own / 32767 - wave.numpy()).max() < 0.01


def test_speech_does_not_change_text(both: tuple[Any, ModelFiles]) -> None:
    """Answers with and without speech at once, prompts of several lengths: all as alone."""
    engine = engine_of(both[1])
    long = tuple(range(1, 280)) * 1
    requests = [asked("a"), asked("b", None), asked("c", VOICES[1], prompt=long), asked("d", None, prompt=long)]
    together = run(engine, *requests)
    assert text_of(together["a"]) == text_of(together["b"])
    assert text_of(together["c"]) == text_of(together["d"])
    for name in ("a", "c"):
        alone = run(engine_of(both[1]), next(one for one in requests if one.id == name))[name]
        assert text_of(together[name]) == text_of(alone)
        own, other = sound_of(together[name]), sound_of(alone)
        assert len(own) == len(other) > 0
        assert np.abs(own.astype(int) - other).max() < 0.01 * 32767
    assert all(chunk.sound is None for name in ("b", "d") for chunk in together[name])


def test_text_is_told_as_it_is_written_and_sound_behind_it(both: tuple[Any, ModelFiles]) -> None:
    chunks = run(engine_of(both[1]), asked(tokens=40))["a"]
    last = chunks[-1]
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert last.finish == "length"
    assert last.stats is not None
    speech = last.stats.speech
    assert speech is not None
    pieces = [chunk.sound for chunk in chunks if chunk.sound is not None]
    assert [piece.start for piece in pieces] == [sum(one.count for one in pieces[:at]) for at in range(len(pieces))]
    assert speech.chunks == len(pieces)
    assert speech.speech_s == pytest.approx(sum(piece.count for piece in pieces) / 24_000)
    assert speech.first_audio_s is not None
    assert speech.first_audio_s > 0
    assert speech.real_time_factor > 0
    assert speech.voice == VOICES[0]


def test_an_answer_that_is_not_wanted_any_more_is_let_go(both: tuple[Any, ModelFiles]) -> None:
    """While the text is written, and while it is spoken."""
    engine = engine_of(both[1])
    free = len(engine._stages._pages)
    for stop in ("text", "sound"):
        engine.add(asked(stop))
        ends: list[str] = []
        while engine.has_work:
            for chunk in engine.step():
                if (chunk.tokens if stop == "text" else chunk.sound) and not ends:
                    engine.cancel(stop)
                ends += [chunk.finish] if chunk.finish else []
        assert ends == ["cancelled"]
        assert len(engine._stages._pages) == free


def test_an_answer_that_was_interrupted_is_made_again(both: tuple[Any, ModelFiles]) -> None:
    """What has been delivered is cut off by the book (tests/engine/process); text and sound are the same."""
    request = asked()
    first = run(engine_of(both[1]), request)["a"]
    again = run(engine_of(both[1]), asked(output=tuple(text_of(first)[:4])))["a"]
    assert text_of(again) == text_of(first)
    assert np.abs(sound_of(again).astype(int) - sound_of(first)).max() < 0.01 * 32767


def test_a_spoken_answer_finds_no_pages_not_even_its_own(both: tuple[Any, ModelFiles]) -> None:
    """Under the same id, as after a crash; what was heard is encoded once all the same."""
    layout = read_layout(both[1])
    assert isinstance(layout, OmniLayout)
    (recording,) = layout.sound(noise_of(0.8, 7), "audio").media
    prompt = [*range(1, 40), AUDIO_START, *[AUDIO] * recording.count, AUDIO_END, 9, 250]
    request = asked(prompt=tuple(prompt), media=place(prompt, [recording], layout.placeholders))
    engine = engine_of(both[1])
    first, again = run(engine, request)["a"], run(engine, request)["a"]
    assert again[-1].stats is not None
    assert again[-1].stats.cached_tokens == 0
    assert text_of(again) == text_of(first)
    assert len(sound_of(again)) == len(sound_of(first)) > 0
    assert engine.stats().encoder_cache_misses == 1


def test_what_cannot_be_spoken_is_refused(both: tuple[Any, ModelFiles]) -> None:
    engine = engine_of(both[1])
    with pytest.raises(InvalidRequest, match=r"audio\.voice.*Ann, Ben"):
        engine.add(asked(voice="Cid"))
    with pytest.raises(InvalidRequest, match="grammar"):
        engine.add(asked(constraint="{}"))
    assert not engine.has_work


def test_a_film_whose_positions_leave_the_talker_no_room_is_refused(both: tuple[Any, ModelFiles]) -> None:
    """The tiny Talker has 4,096 positions; a film of two frames takes two tokens and as many positions as it lasts."""
    stages = engine_of(both[1])._stages
    stages.most_codes = 4096
    for name, lasts, room in (("some", 3000, 4096 - 3004 - 2), ("none", 4000, None)):
        film = Media(
            kind="video",
            start=1,
            count=2,
            digest=bytes(32),
            content=b"film",
            shape=(2, 28, 28, 3),
            grid=(2, 1, 1),
            second=float(lasts),
        )
        request = asked(name, prompt=(5, 6, 6, 7, 8), media=(film,))
        if room is None:
            with pytest.raises(InvalidRequest, match=r"5 tokens and reaches position 4004.*room for 90 codec tokens"):
                stages.add(request)
        else:
            stages.add(request)
            answer = stages._answers[name]
            assert answer.sequence.request.sampling.max_tokens == room
            assert answer.request.media[0].content == answer.sequence.request.media[0].content == b""


@pytest.mark.parametrize("while_writing", [True, False])
def test_an_answer_whose_talker_has_no_finite_logits_ends_with_an_error(
    both: tuple[Any, ModelFiles], while_writing: bool
) -> None:
    """While its text is written, and after; the next answer is spoken."""
    engine = engine_of(both[1])
    free, talker = len(engine._stages._pages), engine._stages._runner._network
    said = talker.logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        over = engine._stages.get("a") is not None and (while_writing or not engine._thinker.busy)
        return said(hidden) * float("nan") if over else said(hidden)

    talker.logits = broken  # type: ignore[method-assign]
    last = run(engine, asked(tokens=40))["a"][-1]
    assert (last.finish, last.error_code) == ("error", "engine_error")
    assert "Talker" in (last.error_message or "")
    assert (len(text_of([last])), len(engine._stages._pages)) == (0, free)
    assert run(engine, asked("b"))["b"][-1].finish == "length"


def waiting(stages: SpeechStages, name: str, tokens: int, codes: int = 60) -> Answer:
    """An answer whose prompt of so many tokens has been thought, and one token of its text."""
    stages.most_codes = codes
    stages.add(asked(name, prompt=(5,) * tokens))
    answer = stages._answers[name]
    answer.think(0, torch.zeros(tokens + 1, stages._table.shape[1]))
    return answer


def test_short_answers_do_not_take_the_pages_that_an_earlier_one_waits_for(both: tuple[Any, ModelFiles]) -> None:
    stages = engine_of(both[1])._stages
    del stages._pages[8:]
    first, second, short = waiting(stages, "a", 7), waiting(stages, "b", 7), waiting(stages, "c", 7, codes=20)
    assert [stages._ready_to_talk(one) for one in (first, second, short)] == [True, False, False]
    stages.remove("a")
    assert [stages._ready_to_talk(one) for one in (second, short)] == [True, True]


def test_answers_that_wait_to_be_spoken_are_bounded(both: tuple[Any, ModelFiles]) -> None:
    engine = engine_of(both[1])
    engine._stages.most_answers = 2
    for name in ("a", "b"):
        engine.add(asked(name))
    with pytest.raises(QueueFull, match="2 spoken answers"):
        engine.add(asked("c"))
    engine.add(asked("c", voice=None))
    engine.cancel("a")
    engine.step()
    engine.add(asked("d"))


def test_who_speaks_does_not_wait_for_long_prompts(
    both: tuple[Any, ModelFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the Talker takes 512 tokens: the next token of a running answer first."""
    stages = engine_of(both[1])._stages
    waiting(stages, "long", 600)
    running = waiting(stages, "running", 7)
    assert stages._ready_to_talk(stages._answers["long"])
    assert stages._ready_to_talk(running)
    running.sequence.computed = 8
    taken: list[tuple[str, int]] = []

    def recorded(work: Sequence[Work], media: Any) -> list[list[Draw]]:
        taken.extend((item.sequence.id, item.count) for item in work)
        return [[] for _ in work]

    monkeypatch.setattr(stages._runner, "run", recorded)
    assert stages.turn() == (True, None)
    assert taken == [("running", 1), ("long", 511)]


def test_text_goes_first(both: tuple[Any, ModelFiles]) -> None:
    """While there is text to write, the other stages have no more than their share of the time, and one turn at a time."""
    engine = engine_of(both[1])
    clock = Clock()
    engine._now = clock.now
    engine._thinker.step = clock.timed(engine._thinker.step, 0.010)  # type: ignore[method-assign]
    engine._stages.turn = clock.timed(engine._stages.turn, 0.030)  # type: ignore[method-assign]
    engine.add(asked(tokens=60))
    ends: list[float] = []
    while engine._thinker.has_work:
        if any(chunk.tokens for chunk in engine.step()):
            ends.append(clock.time)
    assert len(ends) == 60
    assert ends[-1] <= 60 * 0.010 * 1.25 + 0.030 + 1e-9
    assert max(after - before for before, after in pairwise(ends)) <= 0.010 + 0.030 + 1e-9


class Clock:
    """A clock that goes on only by what is called. A test double."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def timed(self, call: Any, seconds: float) -> Any:
        def counted() -> Any:
            self.time += seconds
            return call()

        return counted


def test_it_can_do_all_that_a_text_engine_can() -> None:
    """What a worker asks of a core by its kind: a voice takes none of it away."""
    for kind in (Limited, HoldsPages, Guarded):
        assert issubclass(OmniEngine, kind) == issubclass(Engine, kind) is True
