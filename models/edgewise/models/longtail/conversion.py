"""Which stored tensors make a tensor of the model, by transformers' own table of conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from edgewise.models.weights.reader import TensorInfo


@dataclass(frozen=True, slots=True)
class Part:
    """A stored tensor and the view that it fills."""

    name: str
    out: torch.Tensor


class Conversion:
    """Names of a checkpoint seen from the model: renamed ones, bodies without their prefix, and experts that a checkpoint stores
    one by one and transformers 5 keeps in one tensor."""

    def __init__(self, model: PreTrainedModel, body: str, stored: Mapping[str, TensorInfo]) -> None:
        table = get_model_conversion_mapping(model)
        renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in table if isinstance(entry, WeightConverter) and _stacks(entry)]
        self._stored = stored
        self._prefix = f"{body}."
        self._names = {rename_source_key(name, renamings, [])[0]: name for name in stored}

    def stored(self, name: str) -> str | None:
        """The stored tensor that is the model's `name`; checkpoints of a bare body leave its prefix out."""
        return self._names.get(name) or self._names.get(name.removeprefix(self._prefix))

    def parts(self, name: str, out: torch.Tensor) -> list[Part]:
        """Stored tensors and the views of `out` that they fill; empty if there are none."""
        whole = self.stored(name)
        if whole is not None:
            return [Part(whole, out)]
        for converter in self._converters:
            for target in converter.target_patterns:
                if name.endswith(target) and out.ndim == 3:
                    return self._stack(name.removesuffix(target), list(converter.source_patterns), out)
        return []

    def _stack(self, prefix: str, patterns: list[str], out: torch.Tensor) -> list[Part]:
        """Experts one after the other; of each, the patterns' tensors one after the other along the rows."""
        parts: list[Part] = []
        for expert in range(out.shape[0]):
            first = 0
            for pattern in patterns:
                source = self.stored(prefix + pattern.replace("*", str(expert)))
                if source is None or len(self._stored[source].shape) != 2:
                    return []
                rows = self._stored[source].shape[0]
                parts.append(Part(source, out[expert, first : first + rows]))
                first += rows
            if first != out.shape[1]:
                return []
        return parts


def _stacks(converter: WeightConverter) -> bool:
    """Whether an entry stacks experts and joins their rows, and does nothing else."""
    known = all(
        (isinstance(step, MergeModulelist) and step.dim == 0) or (isinstance(step, Concatenate) and step.dim == 1)
        for step in converter.operations
    )
    return known and all("*" in pattern for pattern in converter.source_patterns)
