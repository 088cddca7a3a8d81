"""Text encoders: our graphs give transformers' vectors, 8 bits stay near them, and the ladder says why each candidate lost."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgewise.core.errors import BadModelFile, EngineUnavailable, InvalidRequest, UnsupportedModel
from edgewise.core.settings import Settings
from edgewise.core.settings_schema import EngineSettings
from edgewise.engine.encoders.climbs import BEGUN, ENDED, start_climb
from edgewise.engine.ledger import Ledger
from edgewise.engine.machine import Machine
from edgewise.engine.notices import Notices
from edgewise.models.encoders import ladder as ladder_module
from edgewise.models.encoders import rung as rung_module
from edgewise.models.encoders.build import Order, climb, read_order
from edgewise.models.encoders.calibrate import calibrate
from edgewise.models.encoders.graph import Form, build_graph, groups, products
from edgewise.models.encoders.load import MAX_BATCH_TOKENS, TextEncoder, batches, load_text_encoder
from edgewise.models.encoders.record import (
    GATE,
    RECORD,
    CandidateRecord,
    LadderRecord,
    ladder_folder,
    place_name,
    read_ladder,
    read_ladders,
    write_winner,
)
from edgewise.models.encoders.rows import pack_rows, unpack_rows
from edgewise.models.encoders.run import TextSession
from edgewise.models.encoders.rung import Best, Rung, place_of
from edgewise.models.encoders.shape import read_shape
from edgewise.models.encoders.text import load_tokenizer
from edgewise.models.encoders.text_network import TextNetwork, sentences
from edgewise.models.encoders.weights import read_weights
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import CUDA, RUNTIME, open_on_card, options_for
from edgewise.models.store import Store
from edgewise.serving.encoders import read_encoder
from tests.fakes.tiny_encoders import MAX_TOKENS, PROSE, WIDTH, encoder_files, expected, make_encoder

FAMILIES = [("bert", "mean"), ("roberta", "mean"), ("xlm-roberta", "mean"), ("bert", "cls")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def files(folder: Path) -> ModelFiles:
    return encoder_files(folder)


def rows_of(files: ModelFiles, count: int) -> list[list[int]]:
    tokenizer = load_tokenizer(files)
    found = tokenizer.encode(sentences(PROSE.read_text())[:count])
    return [tokenizer.shorten(row, MAX_TOKENS) for row in found]


def options(store: Path, **more: str) -> dict[str, str]:
    """What the service tells the loader."""
    return {"store": str(store), "samples": str(PROSE), "device": "test", **more}


def session(files: ModelFiles) -> TextSession:
    shape = read_shape(files)
    return TextSession(build_graph(shape, read_weights(files, shape)).SerializeToString(), 1)


@pytest.mark.parametrize(("family", "pooling"), FAMILIES)
def test_vectors_are_those_of_transformers(family: str, pooling: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, family, pooling=pooling)
    files = encoder_files(folder)
    rows = sorted(rows_of(files, 8), key=len)
    assert len(rows[0]) < len(rows[-1])
    together = session(files).run(rows)
    assert together.shape == (8, WIDTH)
    np.testing.assert_allclose(together, expected(folder, rows, pooling), atol=2e-5)


@pytest.mark.parametrize("form", ["static", "blocks"])
def test_eight_bits_stay_near_float32(form: Form, files: ModelFiles) -> None:
    shape, rows = read_shape(files), rows_of(files, 24)
    weights = read_weights(files, shape)
    tapped = TextSession(build_graph(shape, weights, taps=True).SerializeToString(), 1)
    found = {}
    for name in groups(shape):
        inputs = np.concatenate([tapped.outputs([row], [f"{name}.in"])[0] for row in rows[:12]])
        found[name] = calibrate(inputs, [weights[f"{it}.weight"].T for it in products(shape, name)])
    model = build_graph(shape, weights, dict.fromkeys(groups(shape), form), found)
    assert {"static": "QuantizeLinear", "blocks": "MatMulNBits"}[form] in {node.op_type for node in model.graph.node}
    got, exact = TextSession(model.SerializeToString(), 1).run(rows[12:]), session(files).run(rows[12:])
    assert (got * exact).sum(axis=1).min() > 0.99
    assert np.abs(got - exact).max() > 0


def test_one_wild_channel_does_not_cost_the_others_their_bits() -> None:
    """Without smoothing the products of the small channels are lost: one of 64 channels is a thousand times larger."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 64)).astype(np.float32)
    inputs[:, 7] *= 1000
    weight = rng.normal(size=(64, 32)).astype(np.float32)
    weight[7] /= 1000
    found = calibrate(inputs, [weight])
    evened = inputs / found.smooth
    read = (np.clip(np.round(evened / found.scale) + found.zero, 0, 255) - np.float32(found.zero)) * found.scale
    exact = inputs @ weight
    error = np.linalg.norm(read @ (weight * found.smooth[:, None]) - exact) / np.linalg.norm(exact)
    assert error < 0.03
    assert found.smooth[7] > 20 * np.median(found.smooth)


def test_a_texts_vector_does_not_depend_on_its_company(files: ModelFiles) -> None:
    rows = rows_of(files, 6)
    together = session(files).run(rows)
    alone = np.concatenate([session(files).run([row]) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_the_ladder_keeps_every_candidate_and_the_winner_serves(
    folder: Path, files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "encoders" / files.digest.replace(":", "-") / place_name(RUNTIME, "test", 1)
    older = place.parent / "onnxruntime-0.1-test-t1"
    older.mkdir(parents=True)
    # On so small a network float32 is as quick as anything: let the 8-bit ones win their place by time all the same.
    monkeypatch.setattr(ladder_module, "_GAIN", 1e9)
    monkeypatch.setattr(
        ladder_module.Candidate, "cost", property(lambda it: {"fp32": 9.0, "int8-blocks": 1.0}.get(it.name, 2.0))
    )
    order = Order(files=files, role="embeddings", samples=PROSE, folder=place, device="test", threads=1)
    stages: list[str] = []
    record = climb(read_order(json.loads(order.to_json())), lambda stage, _: stages.append(stage))
    assert stages[0] == "float32"
    assert [it.name for it in record.candidates][:3] == ["fp32", "int8-static", "int8-blocks"]
    assert {it.name for it in record.candidates} == {"fp32", "int8-static", "int8-blocks", "int8-mixed"}
    assert [it.name for it in record.candidates if it.chosen] == [record.chosen.name]
    assert all(it.why for it in record.candidates if not it.chosen)
    assert record.chosen.cosine_min is not None
    assert record.chosen.cosine_min >= record.gate
    assert not older.exists()
    assert read_ladders(tmp_path, files.digest) == [record]

    encoder, _ = load_text_encoder(files, 1, **options(tmp_path))
    assert encoder.precision == record.chosen.name
    row = rows_of(files, 1)[0]
    ((result, content),) = encoder.compute([((tuple(row)),)])
    assert result == {"precision": record.chosen.name, "width": WIDTH}
    vector = np.frombuffer(content, np.float32)
    assert float(vector @ expected(folder, [row])[0]) >= 0.999


def test_a_damaged_record_is_ignored_and_float32_serves(files: ModelFiles, tmp_path: Path) -> None:
    place = tmp_path / "encoders" / files.digest.replace(":", "-") / place_name(RUNTIME, "test", 1)
    place.mkdir(parents=True)
    (place / RECORD).write_text('{"schema": 1}')
    assert read_ladder(place, files.digest) is None
    encoder, _ = load_text_encoder(files, 1, **options(tmp_path))
    assert encoder.precision == "fp32"


def test_what_loses_too_much_never_wins(files: ModelFiles) -> None:
    shape = read_shape(files)
    weights = read_weights(files, shape)
    rows = rows_of(files, 20)
    made = ladder_module.Ladder(TextNetwork(shape, weights, rows[::2], rows[1::2], gate=GATE, threads=1))
    plain = made._plain()
    bad = dataclasses.replace(
        plain, name="int8-static", cosines=np.full(10, 0.9985, np.float32), times={1: 1e-9, 16: 1e-9}
    )
    plain.times |= {1: 1.0, 16: 1.0}
    best = ladder_module.choose([plain, bad], GATE)
    assert best is plain
    assert "0.99850 is below 0.999" in ladder_module.record_of(bad, best, GATE).why


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "deberta-v2"}, "type 'deberta-v2' are not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"architectures": ["BertForSequenceClassification"]}, "2 classes"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ],
)
def test_other_encoders_are_refused_by_name(change: dict[str, object], says: str, folder: Path, tmp_path: Path) -> None:
    files = encoder_files(folder)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(files.paths["config.json"].read_text()), **change}))
    with pytest.raises(UnsupportedModel, match=says):
        read_shape(dataclasses.replace(files, paths={**files.paths, "config.json": config}))


def test_weights_of_another_size_are_refused(files: ModelFiles) -> None:
    with pytest.raises(BadModelFile, match="has the shape"):
        read_weights(files, dataclasses.replace(read_shape(files), hidden=96))
    with pytest.raises(BadModelFile, match="fewer positions"):
        read_weights(files, dataclasses.replace(read_shape(files), max_tokens=MAX_TOKENS + 1))


def test_rows_travel_whole_and_cut_ones_are_refused() -> None:
    rows = ((1, 2, 3), (4,), (5, 6))
    assert unpack_rows(pack_rows(rows, "input")) == rows
    for content in (b"", b"abc", pack_rows(rows, "input")[:-4], pack_rows(rows, "input") + b"\0\0\0\0"):
        with pytest.raises(InvalidRequest):
            unpack_rows(content)
    with pytest.raises(InvalidRequest, match="'input' holds a value"):
        pack_rows([[-1]], "input")


def test_batches_hold_every_text_once_and_none_is_padded_much() -> None:
    lengths = [3, 200, 5, 30, 256, 31, 8, *[250] * 40]
    found = list(batches(lengths))
    assert sorted(at for batch in found for at in batch) == list(range(len(lengths)))
    for batch in found:
        sizes = [lengths[at] for at in batch]
        assert max(sizes) <= 1.5 * max(min(sizes), 16)
        assert len(sizes) * max(sizes) <= MAX_BATCH_TOKENS


def test_what_the_graph_cannot_take_is_refused_before_it(files: ModelFiles) -> None:
    shape = read_shape(files)
    encoder = TextEncoder(shape, SimpleNamespace(rung=Rung("fp32", session(files))))
    for row in ([], [1] * (MAX_TOKENS + 1), [shape.vocab]):
        with pytest.raises(InvalidRequest):
            encoder.check(pack_rows([row], "input"), {})


def test_the_end_is_dropped_and_the_last_special_token_is_kept(files: ModelFiles) -> None:
    tokenizer = load_tokenizer(files)
    (ids,) = tokenizer.encode(["one two three four five six"])
    short = tokenizer.shorten(ids, 4)
    assert short == [*ids[:3], ids[-1]]
    assert tokenizer.shorten(ids, len(ids)) == ids


def test_a_climb_runs_beside_and_its_winner_is_taken(
    files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(rung_module, "_BUILD", "tests.fakes.climb_at_once")
    encoder, _ = load_text_encoder(files, 1, **options(tmp_path, climb_bytes=str(1 << 28)))
    booked: list[int] = []

    def book(size: int) -> Callable[[], None]:
        booked.append(size)
        return lambda: booked.append(-size)

    encoder.improve(book)
    row = tuple(rows_of(files, 1)[0])
    (before,) = encoder.compute([(row,)])  # answered at once, whatever is being built
    (climbing,) = (thread for thread in threading.enumerate() if thread.name == "encoder-climb")
    climbing.join(120)
    assert not climbing.is_alive()
    assert booked == [1 << 28, -(1 << 28)]
    (record,) = read_ladders(tmp_path, files.digest)
    assert encoder.precision == record.chosen.name
    (after,) = encoder.compute([(row,)])
    assert float(np.frombuffer(before[1], np.float32) @ np.frombuffer(after[1], np.float32)) >= 0.999


def told_by(notices: Notices) -> list[str]:
    """The words of all notices so far."""
    words: list[str] = []
    notices.listen(lambda kind, message: words.append(kind))
    return words


def test_the_service_is_told_when_a_climb_begins_and_ends() -> None:
    frees: list[Callable[[], None]] = []

    class Climbing:
        """A named double of an encoder that books what it needs and is done when the test says so."""

        def improve(self, book: Callable[[int], Callable[[], None]]) -> None:
            frees.append(book(1 << 20))

    ledger, notices = Ledger(1 << 30, lambda: 1 << 40), Notices()
    start_climb(Climbing(), ledger, notices)
    words = told_by(notices)
    assert (words, ledger.report().booked) == ([BEGUN], {"climb": 1 << 20})
    frees[0]()
    assert (words, ledger.report().booked) == ([BEGUN, ENDED], {})


def test_without_room_for_a_climb_float32_serves(files: ModelFiles, tmp_path: Path) -> None:
    encoder, _ = load_text_encoder(files, 1, **options(tmp_path, climb_bytes=str(1 << 28)))
    ledger = Ledger(1 << 28, lambda: 1 << 40)
    ledger.book("model", 1 << 20)
    notices = Notices()
    start_climb(encoder, ledger, notices)
    assert told_by(notices) == []
    assert ledger.report().booked == {"model": 1 << 20}
    assert encoder.precision == "fp32"
    assert not [thread for thread in threading.enumerate() if thread.name == "encoder-climb"]


def record_of_card(files: ModelFiles) -> LadderRecord:
    chosen = CandidateRecord(
        name="cuda-fp16",
        forms={},
        cosine_min=1.0,
        cosine_mean=1.0,
        ms_one=1.0,
        ms_many=1.0,
        bytes=3,
        passed=True,
        chosen=True,
        why="",
        nodes={"CUDAExecutionProvider": 9},
    )
    return LadderRecord(
        model=files.name,
        digest=files.digest,
        runtime=RUNTIME,
        device="NVIDIA H200",
        threads=1,
        measured_at="2026-01-01T00:00:00Z",
        took_s=1.0,
        gate=GATE,
        inputs=1,
        many=2,
        file="cuda-fp16.onnx",
        candidates=(chosen,),
        driver="580.1",
    )


def test_a_rung_whose_provider_is_gone_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    """Neither another rung nor the CPU takes its place unseen."""
    order = place_of(1, options(tmp_path)).order(files, "embeddings")
    write_winner(order.folder, record_of_card(files), b"abc")

    def gone(name: str, path: Path) -> TextSession:
        open_on_card(path, {CUDA: {}}, options_for(1))
        raise AssertionError(name)

    with pytest.raises(EngineUnavailable, match=r"cuda-fp16.*NVIDIA H200.*CUDAExecutionProvider.*--measure"):
        Best(order, lambda: session(files), gone)


def test_a_rung_whose_card_is_gone_is_refused_unless_the_cpu_is_asked_for(
    folder: Path, files: ModelFiles, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.import_path(folder, "tiny", role="embeddings")
    digest = store.manifest("tiny").digest
    record = dataclasses.replace(record_of_card(files), digest=digest)
    write_winner(ladder_folder(store.root, digest) / "cuda-place", record, b"abc")
    machine = Machine(cuda=False, capability=None, available=1 << 40)
    with pytest.raises(EngineUnavailable, match=r"no card can be used now.*engine.device to cpu"):
        read_encoder(Settings(), store, "tiny", machine)
    on_cpu = Settings(engine=EngineSettings(device="cpu"))
    needs = read_encoder(on_cpu, store, "tiny", machine).needs
    assert needs.full > needs.minimal, "a climb on the CPU is to be booked"
    off = Settings(engine=EngineSettings(device="cpu", encoder_tuning="off"))
    booked = read_encoder(off, store, "tiny", machine)
    assert booked.config.options["climb_bytes"] == "0"
    assert booked.needs.full < needs.full
