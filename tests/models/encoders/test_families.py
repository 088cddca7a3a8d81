"""Every family of text encoders gives transformers' vectors, and every cross-encoder its scores, also of long texts."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.core.settings import Settings
from edgewise.engine.machine import Machine
from edgewise.models.encoders import ladder as ladder_module
from edgewise.models.encoders.attend import LONG, buckets
from edgewise.models.encoders.build import Order, climb
from edgewise.models.encoders.graph import build_graph, groups
from edgewise.models.encoders.load import batches, load_cross_encoder, load_text_encoder
from edgewise.models.encoders.rows import pack_pairs, pack_rows
from edgewise.models.encoders.run import PairSession, TextSession
from edgewise.models.encoders.rung import place_of
from edgewise.models.encoders.shape import Head, read_shape
from edgewise.models.encoders.text import load_face, load_tokenizer
from edgewise.models.encoders.weights import read_weights
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from edgewise.serving.encoders import read_encoder
from tests.fakes.tiny_encoders import (
    KINDS,
    MAX_TOKENS,
    PROSE,
    WIDTH,
    encoder_files,
    expected,
    expected_scores,
    make_cross_encoder,
    make_encoder,
)

transformers: Any = untyped_transformers
QUERY = "A tenant is a customer of the cloud."
DOCUMENTS = ["The device answers.", "Pages are kept on disk until they are asked for.", "A customer", "disk " * 90]
SCORED = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert", "gte"]


def session(files: ModelFiles) -> TextSession:
    shape = read_shape(files)
    model = build_graph(shape, read_weights(files, shape)).SerializeToString()
    return (TextSession if shape.head is None else PairSession)(model, 1)


def rows_of(lengths: list[int]) -> list[list[int]]:
    rng = random.Random(5)
    return [[2, *(rng.randrange(4, 600) for _ in range(length - 2)), 3] for length in lengths]


@pytest.mark.parametrize("family", sorted(KINDS))
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers(family: str, pooling: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, family, pooling=pooling)
    rows = rows_of([3, 9, 24, MAX_TOKENS])
    found = session(encoder_files(folder)).run(rows)
    assert found.shape == (4, WIDTH)
    np.testing.assert_allclose(found, expected(folder, rows, pooling), atol=3e-5)


def test_modernberts_layers_see_near_and_far(tmp_path: Path) -> None:
    """Blocks, their edges, and padding: a window of 8 to each side has blocks of 16, and 32 tokens are computed as one."""
    folder = make_encoder(tmp_path, "modernbert", num_hidden_layers=4, local_attention=16, max_position_embeddings=256)
    files = encoder_files(folder)
    assert read_shape(files).windows == (0, 8, 8, 0)
    assert len(set(read_shape(files).thetas)) == 2
    found = session(files)
    for lengths in ([15, 32], [33], [47, 48, 49], [64, 200], [255, 256, 31]):
        rows = rows_of(lengths)
        np.testing.assert_allclose(found.run(rows), expected(folder, rows), atol=3e-5, err_msg=str(lengths))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_long_texts_without_padding_need_no_mask(family: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, family, max_position_embeddings=LONG + 80)
    files = encoder_files(folder)
    (alone,) = rows_of([LONG + 40])
    padded = [alone, alone[: LONG + 9]]
    found = session(files)
    np.testing.assert_allclose(found.run([alone]), expected(folder, [alone]), atol=3e-5)
    np.testing.assert_allclose(found.run(padded), expected(folder, padded), atol=3e-5)
    assert list(batches([LONG, LONG, 9, 9])) == [[2, 3], [0], [1]]


def test_older_configurations_of_modernbert_mean_the_same(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "modernbert", num_hidden_layers=4, local_attention=16)
    files = encoder_files(folder)
    config = json.loads((folder / "config.json").read_text())
    newer = read_shape(files)
    for name in ("layer_types", "rope_parameters"):
        del config[name]
    config |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert read_shape(files) == newer


def test_nomics_own_files_give_the_same_vectors(tmp_path: Path) -> None:
    """Their configuration has other words than that of transformers."""
    folder = make_encoder(tmp_path, "nomic_bert")
    rows = rows_of([7, 30])
    truth = expected(folder, rows)
    config = json.loads((folder / "config.json").read_text())
    theirs = {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "n_embd": WIDTH,
        "n_head": 4,
        "n_inner": 128,
        "n_layer": 2,
        "n_positions": 2 * MAX_TOKENS,
        "max_trained_positions": MAX_TOKENS,
        "layer_norm_epsilon": config["layer_norm_eps"],
        "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "type_vocab_size": config["type_vocab_size"],
        "vocab_size": config["vocab_size"],
    }
    (folder / "config.json").write_text(json.dumps(theirs))
    assert "encoder.layers.0.attn.Wqkv.weight" in load_file(folder / "model.safetensors"), (
        "transformers writes their names"
    )
    files = encoder_files(folder)
    assert read_shape(files).max_tokens == MAX_TOKENS
    np.testing.assert_allclose(session(files).run(rows), truth, atol=3e-5)
    (folder / "config.json").write_text(json.dumps({**theirs, "moe_every_n_layers": 2}))
    with pytest.raises(UnsupportedModel, match="moe_every_n_layers 2"):
        read_shape(files)


def test_mpnets_buckets_are_those_of_transformers() -> None:
    distances = np.arange(-600, 600)
    model: Any = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    exact = model.relative_position_bucket(torch.from_numpy(distances), num_buckets=32)
    np.testing.assert_array_equal(buckets(distances, 32), exact.numpy())


@pytest.mark.parametrize("family", SCORED)
def test_pairs_get_the_scores_of_transformers(family: str, tmp_path: Path) -> None:
    """Texts of other lengths in one batch, and one that is cut as transformers' tokenizer cuts it."""
    folder = make_cross_encoder(tmp_path, family)
    files = encoder_files(folder)
    shape = read_shape(files)
    pairs = load_tokenizer(files).pairs(QUERY, DOCUMENTS, MAX_TOKENS)
    assert [cut for _, cut in pairs] == [False, False, False, True]
    found = session(files).run([pair for pair, _ in pairs])
    assert found.shape == (4, 1)
    truth = expected_scores(folder, QUERY, DOCUMENTS, MAX_TOKENS)
    np.testing.assert_allclose(found[:, 0], truth, atol=5e-5)
    assert np.ptp(truth) > 1e-3, "the scores must differ"
    assert shape.head is not None
    assert shape.head.scale == "sigmoid"


def test_modernberts_head_may_read_the_mean(tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path, "modernbert", classifier_pooling="mean")
    files = encoder_files(folder)
    pairs = [pair for pair, _ in load_tokenizer(files).pairs(QUERY, DOCUMENTS, MAX_TOKENS)]
    truth = expected_scores(folder, QUERY, DOCUMENTS, MAX_TOKENS)
    np.testing.assert_allclose(session(files).run(pairs)[:, 0], truth, atol=5e-5)


@pytest.mark.parametrize(("query", "document"), [(90, 3), (90, 95), (20, 90), (24, 22), (23, 22)])
def test_pairs_are_cut_as_transformers_cuts_them(query: int, document: int, tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path)
    backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    words = ["disk " * query, "page " * document]
    for most in (MAX_TOKENS, MAX_TOKENS - 1):
        ((pair, _),) = load_tokenizer(encoder_files(folder)).pairs(words[0], [words[1]], most)
        truth = backend(*words, truncation=True, max_length=most, return_token_type_ids=True)
        assert list(pair.ids) == truth["input_ids"]
        assert pair.second == truth["token_type_ids"].index(1)


@pytest.mark.parametrize(
    ("change", "head"),
    [
        ({}, Head(activation="tanh", normed=False, scale="sigmoid")),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
    ],
)
def test_scores_have_the_scale_that_their_folder_says(change: dict[str, Any], head: Any, tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    found = read_shape(encoder_files(folder)).head
    assert found is not None
    assert head in (found, found.scale)
    (folder / "config_sentence_transformers.json").write_text('{"activation_fn": "torch.nn.modules.linear.Identity"}')
    newest = read_shape(encoder_files(folder)).head
    assert newest is not None
    assert newest.scale == "identity"


def test_what_a_cross_encoder_may_not_be(tmp_path: Path) -> None:
    files = encoder_files(make_cross_encoder(tmp_path / "three", num_labels=3))
    with pytest.raises(UnsupportedModel, match="tells 3 classes apart"):
        read_shape(files)
    folder = make_cross_encoder(tmp_path / "one")
    config = json.loads((folder / "config.json").read_text())
    strange = {**config, "sentence_transformers": {"activation_fn": "mine.Softplus"}}
    (folder / "config.json").write_text(json.dumps(strange))
    with pytest.raises(UnsupportedModel, match=r"'mine\.Softplus'"):
        read_shape(encoder_files(folder))


def test_a_model_serves_the_role_that_it_is_made_for(tmp_path: Path) -> None:
    one, two = (encoder_files(made(tmp_path / made.__name__)) for made in (make_encoder, make_cross_encoder))
    with pytest.raises(UnsupportedModel, match="no cross-encoder"):
        load_face(one, "rerank")
    with pytest.raises(UnsupportedModel, match="gives no vectors"):
        load_face(two)
    options = {"store": str(tmp_path), "samples": str(PROSE), "device": "test"}
    with pytest.raises(UnsupportedModel, match="gives no vectors"):
        load_text_encoder(two, 1, **options)
    encoder, _ = load_cross_encoder(two, 1, **options)
    pairs = [pair for pair, _ in load_tokenizer(two).pairs(QUERY, DOCUMENTS, MAX_TOKENS)]
    rows = encoder.check(pack_pairs(pairs, "documents"), {})
    ((result, content),) = encoder.compute([rows])
    assert result == {"precision": "fp32", "width": 1}
    truth = expected_scores(tmp_path / "make_cross_encoder", QUERY, DOCUMENTS, MAX_TOKENS)
    np.testing.assert_allclose(np.frombuffer(content, np.float32), truth, atol=5e-5)
    with pytest.raises(Exception, match="cut"):
        encoder.check(pack_rows([[1, 2], [3]], "documents") + pack_rows([], "documents"), {})
    with pytest.raises(Exception, match="cut"):
        encoder.check(pack_rows([pairs[0].ids], "documents"), {})


@pytest.mark.parametrize(("family", "cross"), [("modernbert", False), ("nomic_bert", False), ("bert", True)])
def test_the_ladder_climbs_with_every_kind(family: str, cross: bool, tmp_path: Path) -> None:
    folder = (make_cross_encoder if cross else make_encoder)(tmp_path / "model", family)
    files = encoder_files(folder)
    order = Order(
        files=files,
        role="rerank" if cross else "embeddings",
        samples=PROSE,
        folder=tmp_path / "encoders" / "one" / "here",
        device="test",
        threads=1,
    )
    record = climb(order, lambda stage, share: None)
    names = {it.name for it in record.candidates}
    assert names == {"fp32", "int8-static", "int8-blocks", "int8-mixed"}
    static = next(it for it in record.candidates if it.name == "int8-static")
    assert static.forms == {"static": len(groups(read_shape(files)))}
    assert static.cosine_min is not None
    assert 0.9 < static.cosine_min < 1.0


def test_what_else_sentence_transformers_would_do_is_done_or_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "modernbert")
    told = folder / "config_sentence_transformers.json"
    told.write_text('{"prompts": {"query": "search_query: "}, "default_prompt_name": "query"}')
    assert load_face(encoder_files(folder)).shape.prompt == "search_query: "
    told.write_text('{"prompts": {"query": "search_query: "}, "default_prompt_name": null}')
    assert load_face(encoder_files(folder)).shape.prompt == ""
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert read_shape(encoder_files(folder)).pooling == "cls"
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    with pytest.raises(UnsupportedModel, match="lasttoken"):
        read_shape(encoder_files(folder))
    modules = [{"type": f"sentence_transformers.models.{it}"} for it in ("Transformer", "Dense")]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModel, match="module 'Dense'"):
        read_shape(encoder_files(folder))


def test_lengths_that_a_model_was_trained_to_be_cut_to(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for more, cuts in (({}, ()), ({"is_matryoshka": True}, None), ({"matryoshka_dimensions": [32, 16]}, (32, 16))):
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        assert read_shape(encoder_files(folder)).cuts == cuts
    (folder / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": "256"}))
    with pytest.raises(BadModelFile, match="matryoshka_dimensions"):
        read_shape(encoder_files(folder))


def test_damaged_folders_are_told(tmp_path: Path) -> None:
    files = encoder_files(make_encoder(tmp_path, "modernbert"))
    shape = read_shape(files)
    with pytest.raises(BadModelFile, match=r"mlp\.Wi\.weight' has the shape"):
        read_weights(files, dataclasses.replace(shape, hidden=96))
    config = json.loads(files.paths["config.json"].read_text())
    rope = {"full_attention": {"rope_type": "yarn", "factor": 4.0}}
    for change, says in (
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_parameters": rope}, "'yarn'"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"num_attention_heads": 0}, "heads do not divide"),
        ({"num_hidden_layers": 40_000, "layer_types": ["full_attention"] * 40_000}, "do not fit in one ONNX file"),
    ):
        files.paths["config.json"].write_text(json.dumps({**config, **change}))
        with pytest.raises((BadModelFile, UnsupportedModel), match=says):
            read_shape(files)


@pytest.mark.parametrize("family", ["modernbert", "nomic_bert", "gte", "mpnet"])
def test_constants_of_absurd_positions_are_refused_before_they_are_made(family: str, tmp_path: Path) -> None:
    files = encoder_files(make_encoder(tmp_path, family))
    config = json.loads(files.paths["config.json"].read_text())
    files.paths["config.json"].write_text(json.dumps({**config, "max_position_embeddings": (1 << 31) - 1}))
    with pytest.raises(UnsupportedModel, match=r"max_position_embeddings.*128\.0 MiB.*Set max_seq_length") as told:
        read_shape(files)
    most = int(told.value.message.split("enough for ")[1].split(".")[0])
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most}))
    assert (
        read_shape(encoder_files(tmp_path)).max_tokens == most >= 2048
    )  # the remedy helps, and models that there are fit


def test_a_window_that_no_constant_can_hold_is_refused(tmp_path: Path) -> None:
    files = encoder_files(make_encoder(tmp_path, "modernbert", num_hidden_layers=4))
    config = json.loads(files.paths["config.json"].read_text())
    files.paths["config.json"].write_text(json.dumps({**config, "local_attention": 1 << 30}))
    with pytest.raises(UnsupportedModel, match="local_attention lets a token see 536870912 on each side"):
        read_shape(files)


@pytest.mark.parametrize("cross", [False, True])
def test_a_vocabulary_too_large_for_a_file_is_given_beside_it(
    cross: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of XLM-RoBERTa-large: the graph, and every candidate's file, is without its table of words; results are the same."""
    folder = (make_cross_encoder if cross else make_encoder)(tmp_path / "model", "xlm-roberta")
    files = encoder_files(folder)
    shape = read_shape(files)
    assert not shape.given
    most = shape.weight_bytes - 1
    monkeypatch.setattr("edgewise.models.encoders.shape._MOST_BYTES", most)
    assert read_shape(files).given
    whole = build_graph(dataclasses.replace(shape), read_weights(files, shape)).ByteSize()
    assert whole < shape.file_bytes + 4 * MAX_TOKENS * WIDTH + 100_000
    role = "rerank" if cross else "embeddings"
    store = tmp_path / "store"
    options = {"store": str(store), "samples": str(PROSE), "device": "test"}
    load = load_cross_encoder if cross else load_text_encoder
    rows = load_tokenizer(files).pairs(QUERY, DOCUMENTS[:2], MAX_TOKENS)
    content = (
        pack_pairs([pair for pair, _ in rows], "x") if cross else pack_rows([list(pair.ids) for pair, _ in rows], "x")
    )

    def computed() -> tuple[str, Any]:
        encoder, _ = load(files, 1, **options)
        ((result, found),) = encoder.compute([encoder.check(content, {})])
        return result["precision"], np.frombuffer(found, np.float32)

    precision, plain = computed()
    assert precision == "fp32"
    truth = (
        expected_scores(folder, QUERY, DOCUMENTS[:2], MAX_TOKENS)
        if cross
        else expected(folder, [list(pair.ids) for pair, _ in rows]).reshape(-1)
    )
    np.testing.assert_allclose(plain, truth, atol=5e-5)
    monkeypatch.setattr(ladder_module.Candidate, "cost", property(lambda it: 9.0 if it.name == "fp32" else 1.0))
    place = place_of(1, options).order(files, role)
    record = climb(dataclasses.replace(place, gate=0.5), lambda stage, share: None)
    assert record.file
    assert (place.folder / record.file).stat().st_size < most
    precision, rounded = computed()
    assert precision == record.chosen.name != "fp32"
    np.testing.assert_allclose(rounded, truth, atol=0.1)


def test_memory_is_booked_for_what_halves_become(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", "modernbert")
    tensors = {name: value.half() for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    store = Store(tmp_path / "store")
    store.import_path(folder, "half", role="embeddings")
    machine = Machine(cuda=False, capability=None, available=1 << 40)
    read = read_encoder(Settings(), store, "half", machine)
    whole = read_shape(encoder_files(folder)).weight_bytes
    assert store.manifest("half").size < whole
    assert read.config.needs_bytes >= 3 * whole
    rows = rows_of([5, 20])
    np.testing.assert_allclose(session(encoder_files(folder)).run(rows), expected(folder, rows), atol=2e-3)
