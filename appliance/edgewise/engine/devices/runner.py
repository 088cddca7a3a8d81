"""The runner of a leader: tells the other members of every forward pass before it begins its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from edgewise.engine.constraint import Constraints
from edgewise.engine.devices.group import DeviceGroup
from edgewise.engine.devices.messages import Adapted, Step
from edgewise.engine.runner import Network, Runner
from edgewise.engine.scheduler import Work
from edgewise.kernels.paging import AttentionMeta, KVLayer
from edgewise.kernels.sample import Draw
from edgewise.models.adapters.loading import AdaptedRows
from edgewise.models.multimodal.protocol import StepMedia


class LeadingRunner(Runner):
    """As `Runner`. Raises `CoreLost` where a member has ended; what they hold is lost then."""

    def __init__(
        self,
        network: Network,
        kv: Seq[KVLayer],
        device: torch.device,
        group: DeviceGroup,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(network, kv, device, constraints)
        self._group = group

    def run(self, work: Seq[Work], media: StepMedia | None = None) -> list[list[Draw]]:
        with self._group.watched():
            return super().run(work, media)

    def all_logits(self, work: Seq[Work], media: StepMedia | None = None) -> torch.Tensor:
        with self._group.watched():
            return super().all_logits(work, media)

    def _announce(
        self, tokens: torch.Tensor, meta: AttentionMeta, rows: Seq[int] | None, adapted: Seq[AdaptedRows]
    ) -> None:
        self._group.tell_all(
            Step(
                tokens=_packed(tokens),
                positions=_packed(meta.positions),
                slots=_packed(meta.slots),
                query_lens=np.array(meta.query_lens, dtype=np.int64).tobytes(),
                context_lens=np.array(meta.context_lens, dtype=np.int64).tobytes(),
                tables=_packed(meta.block_tables),
                rows=None if rows is None else np.array(rows, dtype=np.int64).tobytes(),
                adapted=tuple(Adapted(digest=one.adapter.digest, rows=_packed(one.rows)) for one in adapted),
            )
        )


def _packed(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
