"""The cloud as the rest of the device sees it: `placement.protocol.Elsewhere` for planners, a `Part` of the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from edgewise.core.privacy import Clearance, SiteClearance
from edgewise.core.settings_links import CloudSettings
from edgewise.edge.offload.continuation import Side
from edgewise.edge.offload.continuing import ContinuingEngine, Rules
from edgewise.edge.offload.follow import Patience, Road
from edgewise.edge.offload.health import Health
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.pictures import BackedPictures, RemotePictures
from edgewise.edge.offload.pictures_decoded import DecodedPictures, PictureSizes
from edgewise.edge.offload.remote import RemoteEngine
from edgewise.edge.offload.text import TextTokens
from edgewise.edge.placement.protocol import LinkState
from edgewise.engine.api import Engine
from edgewise.engine.pictures.request import PictureEngine
from edgewise.pipeline.model import Tokenizer
from edgewise.pipeline.plan import Demand, Outside
from edgewise.wire.messages import Capability, CloudInfo

_HURRY_S = 1.5
"""A link that was thought to be up and is not is waited for so long where the answer can begin here instead."""


class Cloud:
    """One cloud, over whichever transport reaches it.

    Args:
        cloud: The section [cloud] of the settings.
        health: Watches the link; started and stopped with this part.
        device: This device's name.
        tokenizer: That of a model, by name.
        place: What plans call it. A peer is an engine of the same kind at the same site: it takes what is labelled "site" too.
    """

    def __init__(
        self,
        cloud: CloudSettings,
        health: Health,
        *,
        device: str,
        tokenizer: Callable[[str], Tokenizer],
        place: Outside = "cloud",
    ) -> None:
        self._cloud = cloud
        self.health = health
        self._tokenizer = tokenizer
        self._parting = Parting()
        self._road = Road(health.transport, self._parting, device, health.lost, health.back, place)
        self.place = place
        self._texts: dict[str, TextTokens] = {}
        self._picture_sizes = PictureSizes()

    # --- a part of the service ---------------------------------------------------------------------------------------

    @property
    def routers(self) -> Sequence[APIRouter]:
        return ()

    def start(self) -> None:
        self.health.start()

    async def stop(self) -> None:
        await self._parting.close()
        await self.health.stop()

    # --- what planners ask -------------------------------------------------------------------------------------------

    @property
    def link(self) -> LinkState:
        return self.health.state

    @property
    def info(self) -> CloudInfo | None:
        return self.health.info

    def engine(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        """See `Elsewhere.engine`: the cloud's engine, continued by the local one where that is here and policy allows it."""
        self._check(clearance)
        goes_on = demand.local is not None and self._goes_on(demand, "local")
        if demand.stage == "diffuse":
            pictures = self._pictures(demand, capability, hurry=goes_on)
            return BackedPictures(pictures, self.place, demand.local) if goes_on and self._continues else pictures
        remote = self._remote(demand, capability, hurry=goes_on)
        return self._both(self.place, {self.place: remote, "local": demand.local}) if goes_on else remote

    def backed(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        """The local engine of `demand`, continued by the cloud's when it is lost for good, or asked too when it is slow."""
        self._check(clearance)
        if not self._goes_on(demand, self.place):
            return demand.local
        if demand.stage == "diffuse":
            pictures = self._pictures(demand, capability, hurry=False)
            backed = BackedPictures(demand.local, "local", pictures, self.place)
            return backed if self._continues else demand.local
        remote = self._remote(demand, capability, hurry=False)
        return self._both("local", {"local": demand.local, self.place: remote})

    def _check(self, clearance: Clearance | SiteClearance) -> None:
        """Leave for the site is none for the cloud."""
        wanted = SiteClearance if self.place == "peer" else Clearance
        if not isinstance(clearance, wanted):
            raise ValueError(f"{clearance!r} is no leave for the {self.place}")

    @property
    def _continues(self) -> bool:
        return self._cloud.on_loss == "continue"

    def _goes_on(self, demand: Demand, side: Side) -> bool:
        """Whether `side` may take an answer over, or race for it."""
        if demand.allowed and side not in demand.allowed:
            return False
        longest = demand.prompt_tokens + demand.answer_tokens
        if side == "local" and demand.context is not None and longest > demand.context:
            return False
        return self._continues or self._cloud.hedge_s > 0

    def _both(self, first: Side, engines: Mapping[Side, Engine]) -> ContinuingEngine:
        return ContinuingEngine(first, engines, Rules(go_on=self._continues, hedge_s=self._cloud.hedge_s))

    def _patience(self, *, hurry: bool) -> Patience:
        """With `hurry` the answer can begin elsewhere, which is better than to wait for a link before anything was sent."""
        patience = self._cloud.patience_s
        return Patience(submit_s=min(patience, _HURRY_S) if hurry else patience, stream_s=patience)

    def _pictures(self, demand: Demand, capability: Capability, *, hurry: bool) -> PictureEngine:
        """The cloud's; with a decoder here where there is one and it may be used."""
        remote = RemotePictures(self._road, capability, patience=self._patience(hurry=hurry))
        if demand.local is None or (demand.allowed and "local" not in demand.allowed):
            return remote
        if self._cloud.latents == "never":
            return remote
        return DecodedPictures(remote, demand.local, self._picture_sizes)

    def _remote(self, demand: Demand, capability: Capability, *, hurry: bool) -> RemoteEngine:
        tokenizer = self._tokenizer(demand.model)
        return RemoteEngine(
            self._road,
            capability,
            vocab_size=tokenizer.vocab_size,
            patience=self._patience(hurry=hurry),
            text=self._text(demand, tokenizer) if capability.reads == "text" else None,
        )

    def _text(self, demand: Demand, tokenizer: Tokenizer) -> TextTokens:
        """Kept, for what it makes of a vocabulary takes a while."""
        return self._texts.setdefault(demand.digest, TextTokens(tokenizer))
