"""The cloud's engine over a link that breaks: nothing lost, nothing twice, nothing unchecked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import InvalidRequest, LinkLost, QueueFull
from edgewise.edge.offload.follow import Road
from edgewise.edge.offload.remote import RemoteEngine
from edgewise.edge.offload.text import TextTokens
from edgewise.engine.api import TokenStream
from edgewise.engine.request import GenerateRequest, TokenChunk
from edgewise.models.multimodal.media import Media
from edgewise.wire.messages import Capability, Chunk, Final
from tests.edge.offload.double import CAPABILITY, FakeTransport, ask, expected, remote
from tests.fakes.text import ByteTokenizer


async def read(stream: TokenStream) -> list[TokenChunk]:
    chunks = [chunk async for chunk in stream]
    at = chunks[0].offset
    for chunk in chunks:
        assert chunk.offset == at
        at += len(chunk.tokens)
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return chunks


async def answer(engine: RemoteEngine, request: GenerateRequest) -> list[TokenChunk]:
    chunks = await read(await engine.submit(request))
    await engine.road.parting.close()
    return chunks


def tokens(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 14), max_size=6),
    back=st.integers(0, 5),
    width=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    have=st.integers(0, 6),
)
def test_however_the_link_breaks_the_answer_is_whole(cuts: list[int], back: int, width: list[int], have: int) -> None:
    request = ask()
    begun = ask(output=tuple(expected(request)[:have]))
    transport = FakeTransport(cuts=cuts, back=back, width=width)
    chunks = asyncio.run(answer(remote(transport), begun))
    assert tokens(chunks) == expected(request)[have:]
    assert chunks[-1].finish == "length"
    assert [(control.op, control.done) for control in transport.said] == [("ack", True)]
    assert transport.submits == 1


def test_a_prompt_with_a_picture_is_not_sent_without_it() -> None:
    picture = Media(kind="image", start=1, count=1, digest=b"d" * 32, content=b"abc", shape=(1, 1, 1, 3))
    transport = FakeTransport()
    with pytest.raises(InvalidRequest, match="do not leave this device"):
        asyncio.run(answer(remote(transport), ask(media=(picture,))))
    assert transport.submits == 0


def test_the_account_tells_where_it_ran_and_what_crossed_the_link() -> None:
    chunks = asyncio.run(answer(remote(FakeTransport(cuts=[3]), why="as planned"), ask()))
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.link is not None
    assert (stats.link.up_bytes, stats.link.down_bytes, stats.link.price) == (100, 20, 0.5)
    assert [(one.where, one.offset, one.why) for one in stats.segments] == [("cloud", 0, "as planned")]
    assert (stats.prompt_tokens, stats.completion_tokens) == (3, 12)
    assert chunks[0].stats is not None


def test_a_stop_token_goes_out_last_and_says_stop_only_where_it_ended_the_answer() -> None:
    drawn = [10, 250, 11, 250]  # the first one came before min_tokens
    transport = FakeTransport(answer=lambda work: drawn, finish="stop")
    chunks = asyncio.run(answer(remote(transport), ask()))
    assert tokens(chunks) == drawn
    assert chunks[-1].tokens[-1] == 250
    assert chunks[-1].finish == "stop"


def test_a_link_that_does_not_come_back_ends_the_answer_with_what_was_delivered() -> None:
    transport = FakeTransport(cuts=[5] + [0] * 1000)
    chunks = asyncio.run(answer(remote(transport, patience_s=1.5), ask()))
    assert tokens(chunks) == expected(ask())[:5]
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "link_lost")
    assert transport.connections > 2


def test_a_place_among_the_streams_is_waited_for_and_its_lack_is_no_loss_of_the_link() -> None:
    transport = FakeTransport(full=3)
    lost: list[LinkLost] = []
    engine = remote(transport, patience_s=60.0)
    engine.road = replace(engine.road, lost=lambda name, error: lost.append(error))
    assert tokens(asyncio.run(answer(engine, ask()))) == expected(ask())
    assert lost == []
    chunks = asyncio.run(answer(remote(FakeTransport(full=10**9), patience_s=0.3), ask()))
    assert (chunks[-1].finish, chunks[-1].error_code) == ("error", "rate_limit_exceeded")


def test_a_deadline_ends_the_waiting() -> None:
    transport = FakeTransport(cuts=[2] + [0] * 1000)
    chunks = asyncio.run(answer(remote(transport, patience_s=60.0), ask(deadline_s=0.2)))
    assert chunks[-1].error_code == "deadline_exceeded"


def test_handing_over_waits_for_the_link_and_passes_on_what_the_cloud_refuses() -> None:
    assert tokens(asyncio.run(answer(remote(FakeTransport(losses=3)), ask()))) == expected(ask())
    with pytest.raises(LinkLost):
        asyncio.run(answer(remote(FakeTransport(losses=10_000), patience_s=0.2), ask()))
    with pytest.raises(QueueFull) as refused:
        asyncio.run(answer(remote(FakeTransport(refuse=[QueueFull("Full.", retry_after_s=3.0)])), ask()))
    assert refused.value.retry_after_s == 3.0


def test_a_job_that_the_cloud_may_have_taken_is_withdrawn() -> None:
    async def lose(transport: FakeTransport) -> list[tuple[str, str]]:
        engine = remote(transport, patience_s=0.1)
        with pytest.raises(LinkLost):
            await engine.submit(ask())
        transport.lost_answers = transport.losses = 0
        await engine.road.parting.close(60.0)
        return [(control.op, control.key) for control in transport.said]

    assert asyncio.run(lose(FakeTransport(lost_answers=10_000))) == [("cancel", "r")]
    assert asyncio.run(lose(FakeTransport(losses=10_000))) == []


def _other_token(event: Chunk | Final) -> Chunk | Final:
    """The second connection repeats a token as another one."""
    if isinstance(event, Chunk) and event.attempt == 2 and event.tokens:
        return event.model_copy(update={"tokens": (event.tokens[0] ^ 1, *event.tokens[1:])})
    return event


def _late_token(event: Chunk | Final) -> Chunk | Final:
    """The last token is not the one that was made: no repetition shows it, only the hash."""
    if isinstance(event, Chunk) and event.offset == 11 and event.tokens:
        return event.model_copy(update={"tokens": (event.tokens[0] ^ 1,)})
    return event


def _longer(event: Chunk | Final) -> Chunk | Final:
    return event.model_copy(update={"count": event.count + 1}) if isinstance(event, Final) else event


@pytest.mark.parametrize(
    ("spoil", "word"), [(_other_token, "as others"), (_late_token, "hashes differ"), (_longer, "is cut")]
)
def test_a_stream_that_is_not_what_was_made_is_refused(spoil: object, word: str) -> None:
    transport = FakeTransport(cuts=[4], back=2, spoil=spoil)  # type: ignore[arg-type]
    last = asyncio.run(answer(remote(transport), ask()))[-1]
    assert (last.finish, last.error_code) == ("error", "engine_error")
    assert word in (last.error_message or "")
    assert [control.op for control in transport.said] == ["cancel"]


def test_chunks_that_jump_are_asked_for_again() -> None:
    dropped: list[Chunk] = []

    def drop(event: Chunk | Final) -> Chunk | Final:
        if isinstance(event, Chunk) and event.offset == 3 and not dropped:
            dropped.append(event)
            return event.model_copy(update={"count": 0, "tokens": ()})
        return event

    transport = FakeTransport(spoil=drop)
    assert tokens(asyncio.run(answer(remote(transport), ask()))) == expected(ask())
    assert transport.connections == 2


def test_leaving_and_being_cancelled_cancel_the_job() -> None:
    async def leave() -> list[str]:
        transport = FakeTransport()
        engine = remote(transport)
        stream = await engine.submit(ask("closed"))
        await stream.__anext__()
        assert (await engine.stats()).running == 1
        await stream.aclose()
        await stream.aclose()
        transport.hang = True
        waiting = await engine.submit(ask("cancelled"))
        reader = asyncio.create_task(waiting.__anext__())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        with pytest.raises(StopAsyncIteration):
            await waiting.__anext__()
        dropped = await engine.submit(ask("dropped"))
        del dropped
        gc.collect()
        await asyncio.sleep(0)
        await engine.road.parting.close()
        assert (await engine.stats()).running == 0
        return sorted(f"{control.op} {control.key}" for control in transport.said)

    assert asyncio.run(leave()) == ["cancel cancelled", "cancel closed", "cancel dropped"]


def test_last_words_are_repeated_while_the_link_is_down() -> None:
    async def leave() -> list[str]:
        transport = FakeTransport()
        engine = remote(transport)
        stream = await engine.submit(ask())
        await stream.__anext__()
        transport.losses = 1
        await stream.aclose()
        await engine.road.parting.close(60.0)
        return [control.op for control in transport.said]

    assert asyncio.run(leave()) == ["cancel"]


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 9), max_size=4), back=st.integers(0, 4), width=st.integers(1, 4))
def test_a_back_end_of_texts_gives_tokens_that_decode_to_them(cuts: list[int], back: int, width: int) -> None:
    words = "Gr\u00fc\u00dfe \u2603 & more"
    tokenizer = ByteTokenizer()
    transport = FakeTransport(cuts=cuts, back=back, width=(width,), as_text=lambda tokens: words, finish="stop")
    engine = remote(transport, text=TextTokens(tokenizer))
    engine.capability = Capability(model="tiny", reads="text", context=100)
    chunks = asyncio.run(answer(engine, ask(output=(72, 105))))
    assert tokenizer.decode(tokens(chunks)) == words
    assert chunks[0].offset == 2
    job = next(iter(transport.jobs.values()))
    assert job.work.text == "\x01\x02\x03Hi"  # type: ignore[union-attr]


def test_where_a_tokenizer_puts_a_blank_before_words_the_longest_pieces_are_taken() -> None:
    class Blank(ByteTokenizer):
        def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
            return [32, *super().encode(text, add_special=add_special, parse_special=parse_special)]

    tokenizer = Blank(extra=(b"ab", b"abc"))
    assert TextTokens(tokenizer).tokens_of("abcab!") == (260, 259, 33)


def test_what_it_says_of_itself_is_what_the_cloud_said() -> None:
    engine = remote(FakeTransport())
    assert (engine.info.model, engine.info.max_context, engine.info.pid) == ("tiny", 4096, 0)
    assert engine.info.numeric_class == CAPABILITY.numeric_class
    assert asyncio.run(engine.clear_cache()) == {}
    assert asyncio.run(engine.memory()).booked == {}


def test_where_another_transport_serves_the_answer_goes_on_there_as_another_job() -> None:
    async def change() -> tuple[list[TokenChunk], FakeTransport, FakeTransport]:
        first, second = FakeTransport(cuts=[4] + [0] * 1000), FakeTransport(name="mqtt")
        engine = remote(first)
        now = [first]
        engine.road = Road(lambda: now[0], engine.road.parting, "test", lambda name, error: now.__setitem__(0, second))
        return await answer(engine, ask()), first, second

    chunks, first, second = asyncio.run(change())
    assert tokens(chunks) == expected(ask())
    assert [control.op for control in first.said] == ["cancel"]
    assert [control.op for control in second.said] == ["ack"]
    work = second.jobs["r@4"].work
    assert work.output == tuple(expected(ask())[:4])  # type: ignore[union-attr]
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.link is not None
    assert stats.link.up_bytes == 200
