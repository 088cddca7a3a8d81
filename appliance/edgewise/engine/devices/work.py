"""What a member does with the leader's messages: compute its share of each step, and move its share of pages."""

from __future__ import annotations

import numpy as np
import torch

from edgewise.engine.devices import place
from edgewise.engine.devices.link import Link
from edgewise.engine.devices.messages import (
    CloseAdapter,
    Contents,
    Export,
    Join,
    Joined,
    Leave,
    Loaded,
    OpenAdapter,
    Restore,
    Share,
    Step,
    ToMember,
)
from edgewise.engine.kv_cache import allocate
from edgewise.engine.networks import describe
from edgewise.engine.tiers.mover import KVPageMover
from edgewise.kernels.paging import AttentionMeta
from edgewise.kernels.rows import Rows
from edgewise.models.adapters.loading import AdaptedRows, Adapter, load_adapter
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.parallel import ProcessGroup


class ShareWorker:
    """One member's decoder and pages."""

    def __init__(self, share: Share, link: Link[ToMember]) -> None:
        torch.set_num_threads(share.threads)
        network = describe(share.model, max_context=share.max_context)
        assert isinstance(network, DecoderConfig)
        self._share = share
        self._link = link
        self._network = network
        self._device = place.device_of(share.device, share.rank)
        place.use(self._device)
        self._decoder = load_decoder(
            share.model,
            device=self._device,
            dtype=getattr(torch, share.dtype),
            config=network,
            parallel=ProcessGroup(share.rank, share.size),
        )
        self._kv = allocate(
            self._decoder.config,
            num_pages=share.num_pages,
            kv_dtype=share.kv_dtype,
            dtype=share.dtype,
            device=self._device,
        )
        self._mover = KVPageMover(self._kv)
        self._adapters: dict[str, Adapter] = {}

    def run(self) -> None:
        """Return after a `Leave`; whatever else ends the work passes through."""
        self._link.send(Loaded())
        while not isinstance(message := self._link.receive(), Leave):
            self._handle(message)
        place.part()

    def _handle(self, message: ToMember) -> None:
        match message:
            case Step():
                self._step(message)
            case Export(pages=pages):
                self._link.send(Contents(contents=b"".join(self._mover.export(pages))))
            case Restore(pages=pages, contents=packed):
                size, whole = self._mover.page_bytes, memoryview(packed)
                self._mover.restore(pages, [whole[at : at + size] for at in range(0, len(whole), size)])
            case OpenAdapter(files=files):
                adapter = load_adapter(
                    files, self._network, dtype=self._decoder.dtype, device=self._device, share=self._decoder.parallel
                )
                self._adapters[files.digest] = adapter
            case CloseAdapter(digest=digest):
                del self._adapters[digest]
            case Join(multiple=multiple, tile=tile):
                share = self._share
                place.join(self._device, share.rank, share.size, share.meeting)
                self._link.send(Joined(proven=self._decoder.take_rows(Rows(multiple, tile, proven=True))))
            case Share() | Leave():
                raise TypeError("a second Share")

    @torch.inference_mode()
    def _step(self, step: Step) -> None:
        query_lens, context_lens = (
            tuple(np.frombuffer(packed, dtype=np.int64).tolist()) for packed in (step.query_lens, step.context_lens)
        )
        meta = AttentionMeta(
            query_lens=query_lens,
            context_lens=context_lens,
            positions=self._longs(step.positions),
            slots=self._longs(step.slots),
            block_tables=self._tensor(step.tables, np.int32).view(len(query_lens), -1),
        )
        adapted = [AdaptedRows(self._adapters[one.digest], self._longs(one.rows)) for one in step.adapted]
        hidden = self._decoder.forward(self._longs(step.tokens), self._kv, meta, adapted=adapted)
        if step.rows is None:
            self._decoder.logits(hidden)
        elif step.rows:
            self._decoder.logits(hidden[self._longs(step.rows)])

    def _longs(self, packed: bytes) -> torch.Tensor:
        return self._tensor(packed, np.int64)

    def _tensor(self, packed: bytes, dtype: type[np.int64] | type[np.int32]) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(packed, dtype=dtype).copy()).to(self._device)
