"""An adapter of the store as a model that can be asked: its base's tokenizer and template, and an engine that answers with it.

Adapters of one base share one engine, in which their requests are batched together. It stands beside the base's own: adapters
take memory, on a card they need the reference kernels, and nobody's model shall become slower because it has an adapter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edgewise.core.errors import ModelNotFound, UnsupportedField
from edgewise.engine.api import CacheTier, Engine, EngineInfo, EngineState, EngineStats, MemoryReport, TokenStream
from edgewise.engine.config import EngineConfig, for_adapters
from edgewise.engine.request import GenerateRequest
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import CONFIG, WEIGHTS
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store
from edgewise.pipeline.model import ModelCard, ServedModel

_MARK: Final = "+adapters"
"""No name of a model has it (`models.names`)."""


def engine_name(base: str) -> str:
    """Of the engine that answers for adapters of `base`."""
    return base + _MARK


def base_of(name: str) -> str:
    """The model whose files an engine of that name computes."""
    return name.removesuffix(_MARK)


def config_of(name: str, config: EngineConfig, *, cuda: bool = False) -> EngineConfig:
    """The configuration of an engine of that name, where `config` is the base's. `cuda`: a device is usable."""
    return config if name == base_of(name) else for_adapters(replace(config, adapters=True), cuda=cuda)


def require_kernels(manifest: Manifest, kernels: str) -> None:
    """Before anything is loaded for an adapter. Raises `UnsupportedField` where `engine.kernels` are others than compute it."""
    if kernels == "triton":
        raise UnsupportedField(
            f"The adapter '{manifest.name}' cannot be used: 'engine.kernels' is {kernels}, and those compute no adapters. "
            "Set engine.kernels to auto, or to reference or native.",
            param="model",
        )


def whole_name(manifest: Manifest) -> str:
    """The other name that an adapter may be asked by: "base:adapter"."""
    return f"{manifest.info.base}:{manifest.name}"


def adapter_name(name: str) -> str:
    """ "base:adapter" is a longer name of the adapter."""
    return name.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class _Adapted:
    digest: str
    base: ServedModel
    served: ServedModel


class AdaptedModels:
    """Adapters that were asked, and what is known of them for as long as neither they nor their bases change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._manifests: dict[str, tuple[object, Manifest]] = {}
        self._adapted: dict[str, _Adapted] = {}

    def __repr__(self) -> str:
        return f"AdaptedModels({sorted(self._adapted)})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._adapted)

    def served(self) -> tuple[ServedModel, ...]:
        return tuple(one.served for one in self._adapted.values())

    def get(self, name: str) -> ServedModel | None:
        adapted = self._adapted.get(adapter_name(name))
        return None if adapted is None else adapted.served

    def engine_of(self, name: str) -> str | None:
        """The engine behind an adapter that was asked; None for any other name."""
        adapted = self._adapted.get(adapter_name(name))
        return None if adapted is None else engine_name(adapted.base.name)

    def forget(self, name: str) -> None:
        self._adapted.pop(name, None)
        self._manifests.pop(name, None)

    def let_go(self, base: object) -> None:
        """`base` has been closed: its adapters hold its tokenizer no longer."""
        self._adapted = {name: one for name, one in self._adapted.items() if one.base is not base}

    def manifest(self, name: str, stamp: object) -> Manifest | None:
        """Of an installed adapter, read again where `stamp` is another than before; None of a model. Reads a small file."""
        known = self._manifests.get(name)
        if known is None or known[0] != stamp:
            known = self._manifests[name] = stamp, self._store.manifest(name)
        return known[1] if known[1].info.role == "adapter" else None

    def adapt(self, manifest: Manifest, base: ServedModel) -> ServedModel:
        """An adapter as a model that can be asked. Raises `ModelNotFound` or `BadModelFile` if its files are not whole."""
        known = self._adapted.get(manifest.name)
        if known is None or known.base is not base or known.digest != manifest.digest:
            known = _Adapted(manifest.digest, base, self._adapt(manifest, base))
            self._adapted[manifest.name] = known
        return known.served

    def _adapt(self, manifest: Manifest, base: ServedModel) -> ServedModel:
        files = self._store.resolve(manifest.name, "adapter")
        if not {CONFIG, WEIGHTS} <= files.paths.keys():
            raise ModelNotFound(f"The adapter '{manifest.name}' has not both its files: add it again.", param="model")
        adapter = AdapterFiles(
            name=manifest.name,
            digest=manifest.digest,
            config=str(files.paths[CONFIG]),
            weights=str(files.paths[WEIGHTS]),
        )
        return replace(
            base,
            name=manifest.name,
            aliases=(whole_name(manifest),),
            engine=AdaptedEngine(base.engine, adapter),
            digest=manifest.digest,
            created=manifest.installed_seconds,
        )


def no_base(manifest: Manifest) -> ModelNotFound:
    base = manifest.info.base
    return ModelNotFound(
        f"The adapter '{manifest.name}' is of the model '{base}', which is not installed: `edgewise models pull {base}` or "
        "import it.",
        param="model",
    )


def card_of_adapter(manifest: Manifest, base: ModelCard, *, loaded: bool) -> ModelCard:
    """As its base's, under its own names."""
    return replace(
        base,
        name=manifest.name,
        aliases=(whole_name(manifest),),
        digest=manifest.digest,
        created=manifest.installed_seconds,
        loaded=loaded,
    )


class AdaptedEngine:
    """Implements `engine.api.Engine`: the base's engine, whose answers are made with the adapter."""

    def __init__(self, engine: Engine, adapter: AdapterFiles) -> None:
        self._engine = engine
        self._adapter = adapter

    def __repr__(self) -> str:
        return f"AdaptedEngine({self._adapter.name}, {self._engine!r})"

    @property
    def state(self) -> EngineState:
        return self._engine.state

    @property
    def info(self) -> EngineInfo | None:
        """The base's, under the adapter's name and digest: pages of one are none of the other's."""
        info = self._engine.info
        if info is None:
            return None
        return replace(info, model=self._adapter.name, digest=self._adapter.digest, kv_fingerprint="")

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """As the base's; raises what `engine.adapters.Adapters.open` raises as well."""
        return await self._engine.submit(replace(request, adapter=self._adapter, shared=False))

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def memory(self) -> MemoryReport:
        return await self._engine.memory()

    async def clear_cache(self, tier: CacheTier | None = None) -> dict[str, int]:
        return await self._engine.clear_cache(tier)
