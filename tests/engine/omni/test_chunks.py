"""The size of chunks against a simulated pipeline: a Talker, a Code2Wav and a player that are arithmetic. A test double."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgewise.engine.omni.chunks import MOST, SAFETY, Chunking, Rates, Shape
from edgewise.engine.omni.player import Player

TOKENS, MARGIN = 12, 3
SHAPE = Shape(block_s=0.24, block_tokens=TOKENS, margin=MARGIN, held_s=0.38)


@dataclass
class SimulatedPipeline:
    """One device does one thing at a time: tokens while a chunk is not ready, then the chunk. Times vary up to SAFETY."""

    chunking: Chunking
    token_s: float
    block_s: float
    total: int
    random: Random
    now: float = 0.0
    tokens: int = 0
    done: int = 0
    sizes: list[int] = field(default_factory=list)
    player: Player = field(default_factory=lambda: Player(asked=0.0))

    def run(self) -> None:
        held = SHAPE.held_s
        while self.done < self.total:
            left = self.total - self.done
            missing = [self.missing(size) for size in range(1, left + 1)]
            wanted = self.chunking.next(self.player.buffer(self.now), missing)
            assert 1 <= wanted <= left
            if missing[wanted - 1]:
                self.now += self.jitter(self.token_s)
                self.tokens += 1
                continue
            self.now += self.jitter(self.block_s) * (wanted + MARGIN)
            self.done += wanted
            self.sizes.append(wanted)
            sound = wanted * SHAPE.block_s
            waits = 0.0 if self.done == self.total else SHAPE.held_s
            self.player.give(max(0.0, sound + (held if len(self.sizes) > 1 else 0.0) - waits), self.now)

    def missing(self, blocks: int) -> int:
        ahead = min(self.done + blocks + 1, self.total)
        return max(0, ahead * TOKENS - self.tokens)

    def jitter(self, seconds: float) -> float:
        return seconds * self.random.uniform(0.7, 1.0) * SAFETY


rates = st.builds(Rates, token_s=st.floats(0.0005, 0.02), block_s=st.floats(0.001, 0.2))


@settings(max_examples=150, deadline=None)
@given(rates, st.integers(1, 120), st.integers(0, 1 << 30))
def test_playback_never_stops_where_the_stages_are_fast_enough(rates: Rates, total: int, seed: int) -> None:
    chunking = Chunking(SHAPE, rates)
    assume(chunking.sustaining is not None)
    pipeline = SimulatedPipeline(chunking, rates.token_s, rates.block_s, total, Random(seed))
    pipeline.run()
    assert pipeline.player.gaps == 0
    assert pipeline.player.played == pytest.approx(total * SHAPE.block_s)


@settings(max_examples=150, deadline=None)
@given(rates, st.integers(1, 120), st.integers(0, 1 << 30))
def test_the_first_sound_is_bounded(rates: Rates, total: int, seed: int) -> None:
    """By the tokens and the turns of a first chunk, which is no larger than a sustaining one and what is held back."""
    chunking = Chunking(SHAPE, rates)
    first = min(chunking.first, total)
    pipeline = SimulatedPipeline(chunking, rates.token_s, rates.block_s, total, Random(seed))
    pipeline.run()
    assert pipeline.player.first is not None
    assert pipeline.sizes[0] == first <= MOST + 2
    assert pipeline.player.first <= chunking.seconds(first, (first + 1) * TOKENS) + 1e-6


def test_chunks_grow_with_what_is_left_to_play() -> None:
    pipeline = SimulatedPipeline(Chunking(SHAPE, Rates(0.002, 0.01)), 0.002, 0.01, 60, Random(0))
    pipeline.run()
    first, *others, _ = pipeline.sizes
    assert first == 2
    assert others == sorted(others)
    assert others[0] < others[-1] == MOST
    assert pipeline.player.gaps == 0


def test_stages_that_are_too_slow_speak_all_the_same() -> None:
    """With gaps, which are told: the first sound does not wait for what cannot be had."""
    rates = Rates(0.05, 0.3)
    assert Chunking(SHAPE, rates).sustaining is None
    pipeline = SimulatedPipeline(Chunking(SHAPE, rates), 0.05, 0.3, 20, Random(0))
    pipeline.run()
    assert pipeline.player.gaps > 0
    assert pipeline.player.worst_gap > 0.1
    assert pipeline.sizes[0] == 2


def test_a_slower_chunk_counts_at_once() -> None:
    rates = Rates(0.01, 0.01)
    rates.chunk(4, 0.2)
    assert rates.block_s == 0.05
    rates.chunk(4, 0.04)
    assert 0.01 < rates.block_s < 0.05


def test_a_player_tells_its_gaps() -> None:
    player = Player(asked=1.0)
    assert player.buffer(1.0) is None
    player.give(2.0, now=1.5)
    player.give(1.0, now=3.0)
    assert (player.first_audio_s, player.buffer(3.5), player.gaps) == (0.5, 1.0, 0)
    player.give(1.0, now=5.0)
    assert (player.gaps, player.worst_gap, player.played) == (1, 0.5, 4.0)
