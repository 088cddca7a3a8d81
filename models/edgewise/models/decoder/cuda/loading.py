"""Load a decoder onto a card: streamed from the store, and rounded layer by layer where that is asked for, so that no more than
one layer is there in floats beside what stays. Blocks of GGUF files that the card multiplies as they are stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import torch

from edgewise.kernels.rope import RopeTable
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.kernels.triton.decode_product import Weight
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.cuda.stored import stored_matrix
from edgewise.models.decoder.cuda.weights import CardWeights, card_layer, card_matrix, card_weights, layer_tables
from edgewise.models.decoder.layout import targets
from edgewise.models.decoder.loading import check_tensors, check_tied, load_rope_tables
from edgewise.models.decoder.names import names_of
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.parallel import ALONE
from edgewise.models.decoder.parameters import DecoderParameters, LayerParameters, allocate
from edgewise.models.decoder.streaming import stream_targets
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights

DTYPE = torch.bfloat16
_MATRICES = ("qkv", "output", "gate_up", "down")


def load_on_card(
    files: ModelFiles,
    config: DecoderConfig,
    device: torch.device,
    quantize: Quantize,
    progress: Callable[[float], None],
) -> CardWeights:
    """Load a model that `support.why_not` has nothing against.

    Raises:
        BadModelFile, StorageError: As `decoder.loading.load_decoder`.
    """
    with closing(open_weights(files)) as reader:
        stored = list(reader.tensors)
        names = names_of(config, files.format, stored)
        check_tensors(config, stored, reader, files, names, ALONE)
        shadow = allocate(config, DTYPE, torch.device("meta"))
        total = sum(target.out.nbytes for target in targets(config, shadow, names, ALONE))
        done = 0

        def fill(parameters: DecoderParameters) -> None:
            """Read those tensors that are not on the meta device."""
            nonlocal done
            wanted = [each for each in targets(config, parameters, names, ALONE) if not each.out.is_meta]
            for nbytes in stream_targets(wanted, reader, device):
                done += nbytes
                progress(done / total)

        if quantize == "none":
            whole = allocate(config, DTYPE, device)
            fill(whole)
            weights = card_weights(config, whole, load_rope_tables(config, reader, device))
        else:
            wanted = list(targets(config, shadow, names, ALONE))

            def take(matrix: torch.Tensor) -> Weight | None:
                """As the file has it; None where that must be rounded."""
                nonlocal done
                found = stored_matrix(matrix, wanted, reader, quantize, device)
                if found is not None:
                    done += matrix.nbytes
                    progress(done / total)
                return found

            weights = _rounded(config, shadow, quantize, device, fill, take, load_rope_tables(config, reader, device))
        check_tied(config, reader, files, names, DTYPE)
    return weights


def _rounded(
    config: DecoderConfig,
    shadow: DecoderParameters,
    quantize: Quantize,
    device: torch.device,
    fill: Callable[[DecoderParameters], None],
    take: Callable[[torch.Tensor], Weight | None],
    ropes: Mapping[RopeParameters, RopeTable],
) -> CardWeights:
    """Read a part, round it, forget its floats; the largest parts first, while there is most room."""
    embedding, norm = (torch.empty_like(each, device=device) for each in (shadow.embedding, shadow.norm))
    if config.tied_embeddings:
        fill(replace(shadow, embedding=embedding, head=embedding, norm=norm))
        head = card_matrix(embedding, quantize)
    else:
        found = take(shadow.head)
        if found is None:
            own = torch.empty_like(shadow.head, device=device)
            fill(replace(shadow, head=own))
            found = card_matrix(own, quantize)
            del own
        head = found
        fill(replace(shadow, embedding=embedding, norm=norm))
    layers = []
    for index, layer in enumerate(shadow.layers):
        taken = {name: found for name in _MATRICES if (found := take(getattr(layer, name))) is not None}
        real = _on(layer, device, taken)
        fill(replace(shadow, layers=(*shadow.layers[:index], real, *shadow.layers[index + 1 :])))
        layers.append(card_layer(real, config.experts_of(index), quantize, taken))
        del real
    return CardWeights(
        config=config,
        embedding=embedding,
        layers=tuple(layers),
        norm=norm,
        head=head,
        tables=layer_tables(config, ropes),
    )


def _on(layer: LayerParameters, device: torch.device, but: Container[str]) -> LayerParameters:
    """Tensors of the same shapes on `device`, with undefined contents; those named `but` stay as they are."""
    values: dict[str, Any] = {field.name: getattr(layer, field.name) for field in fields(layer)}
    real = {
        name: torch.empty_like(value, device=device) if isinstance(value, torch.Tensor) and name not in but else value
        for name, value in values.items()
    }
    return LayerParameters(**real)
