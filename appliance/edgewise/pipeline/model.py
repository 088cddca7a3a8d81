"""The models that a process serves, and the text interfaces they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from edgewise.core.errors import ConfigError, InvalidRequest, ModelNotFound
from edgewise.core.privacy import Privacy
from edgewise.engine.api import Engine, EngineState, EngineStats, MemoryReport
from edgewise.engine.encoders.request import EncoderEngine
from edgewise.engine.pictures.request import PictureEngine
from edgewise.models.encoders.text import TextFace
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import Role
from edgewise.models.multimodal.layout import Layout
from edgewise.models.multimodal.media import MediaKind
from edgewise.models.templates.tool_styles import ToolSupport
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.structured.check import GrammarCheck


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes that the vocabulary cannot write; `encode` leaves them out."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`; `parse_special` turns the written form of special tokens into their ids."""

    def token_bytes(self, id: int, /) -> bytes:
        """The bytes this token adds to the text; they need not be whole UTF-8 characters."""

    def token_text(self, id: int, /) -> str: ...

    def is_special(self, id: int, /) -> bool: ...

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class ChatTemplate(Protocol):
    """Messages to the text that the model was trained on."""

    @property
    def tool_support(self) -> ToolSupport: ...

    @property
    def takes_parts(self) -> bool:
        """Whether a message's content may be a list of parts."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Raises `TemplateFailed` when the template refuses the messages."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model that can be asked.

    Attributes:
        name, aliases: What callers may call it; answers carry `name`.
        template: None for a model without a chat template: it answers completions only.
        max_context: Largest prompt + answer in tokens.
        digest: "sha256:<hex>" of the model's manifest.
        created: Unix seconds, shown by /v1/models.
        here: False for a model that is only elsewhere: its engine takes nothing.
        far_contexts: Largest prompt + answer of the same model elsewhere, by the strictest label that may go there.
        sampling: Recommended values for fields of `pipeline.task.Sampling` that a request leaves out.
        files: Those of a model that is here and takes media.
        layout: How it takes pictures and film; None for a model that takes none.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    engine: Engine
    max_context: int
    digest: str
    created: int
    owned_by: str = "edgewise"
    here: bool = True
    far_contexts: Mapping[Privacy, int] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    files: ModelFiles | None = None
    layout: Layout | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may call it."""
        return (self.name, *self.aliases)

    @cached_property
    def special_ids(self) -> Mapping[str, int]:
        """Ids of the control tokens by their written form."""
        tokenizer = self.tokenizer
        return {tokenizer.token_text(id): id for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)}

    @cached_property
    def grammars(self) -> GrammarCheck:
        """Compiles grammars for this model's vocabulary. The first use takes a while: not from the event loop."""
        return GrammarCheck(self.tokenizer)

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """The written form of every special token, the longest first."""
        tokenizer = self.tokenizer
        texts = {tokenizer.token_text(id) for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)} - {""}
        return tuple(sorted(texts, key=len, reverse=True))

    @property
    def context(self) -> int:
        """The context that counts: the model's own, or the engine's where that is smaller."""
        info = self.engine.info
        return self.max_context if info is None else min(self.max_context, info.max_context)

    def context_for(self, needed: int, privacy: Privacy) -> int:
        """The context for a prompt with the least answer, `needed` tokens together: that of a place elsewhere where this device's
        does not hold it, the label allows it, and the other one is larger."""
        ours = self.context
        if needed <= ours:
            return ours
        return max([ours, *(context for label, context in self.far_contexts.items() if privacy >= label)])


@dataclass(frozen=True, kw_only=True)
class ServedPictures:
    """One model that can be asked for pictures; the attributes are those of `ServedModel`.

    Attributes:
        here: False for one that is asked elsewhere: its engine refuses.
        steps: Steps of a picture where a request names none.
        pixels: Of a picture whose request names no size.
    """

    name: str
    engine: PictureEngine
    digest: str
    created: int
    steps: int = 0
    pixels: int = 0
    owned_by: str = "edgewise"
    aliases: tuple[str, ...] = ()
    here: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may call it."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, kw_only=True)
class ServedEncoder:
    """One model that answers an input at once; the attributes are those of `ServedModel`, and `role` says what it is for.

    `face` is there where it reads texts.
    """

    name: str
    role: Role
    engine: EncoderEngine
    digest: str
    created: int
    owned_by: str = "edgewise"
    aliases: tuple[str, ...] = ()
    here: bool = True
    face: TextFace | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What callers may call it."""
        return (self.name, *self.aliases)


Served = ServedModel | ServedPictures | ServedEncoder | ServedListener


def role_of(served: Served) -> Role:
    """What a model is for."""
    if isinstance(served, ServedEncoder):
        return served.role
    if isinstance(served, ServedListener):
        return "speech-to-text"
    return "diffusion" if isinstance(served, ServedPictures) else "llm"


class Observed(Protocol):
    """What an engine of any kind tells of itself."""

    @property
    def state(self) -> EngineState: ...

    async def stats(self) -> EngineStats: ...

    async def memory(self) -> MemoryReport: ...


ModelState = Literal["unloaded", "waiting", "loading", "loaded", "unloading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model that may be asked, loaded or not, as /v1/models shows it.

    Attributes:
        context: Largest prompt + answer in tokens; None where nobody knows before it is opened.
        chat: Whether it has a chat template; None where nobody knows before it is opened.
        where: "cloud" or "peer" for one that is not on this device.
        media: What its prompts may hold besides text.
    """

    name: str
    aliases: tuple[str, ...]
    context: int | None
    digest: str
    created: int
    owned_by: str
    chat: bool | None
    loaded: bool
    where: Literal["local", "cloud", "peer"] = "local"
    role: str = "llm"
    media: tuple[MediaKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """What a model occupies at the moment.

    Attributes:
        memory_bytes: What its engine may book; 0 while it is not loaded.
        needs_bytes: The least that it can be loaded with; None where that is not counted.
        waiting: Requests that wait for it to be loaded.
        active: Requests that its engine has, queued or writing.
        expires_s: Seconds until it is unloaded if nobody asks it; None while it is busy, pinned, not loaded or kept for ever.
        pid: Process id of its engine.
    """

    name: str
    digest: str
    state: ModelState
    pinned: bool
    memory_bytes: int
    needs_bytes: int | None
    waiting: int
    active: int
    expires_s: float | None
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """All models that are loaded or have been asked, and the memory they share; `budget_bytes` is None without a bound.

    `loads` and `evictions` count since the service's start.
    """

    budget_bytes: int | None
    granted_bytes: int
    loads: int
    evictions: int
    models: tuple[ModelStatus, ...]


class Models:
    """The served models by name and alias. Here they are a fixed set; a service with a store has a subclass of it."""

    def __init__(self, served: Iterable[ServedModel] = (), pictures: Iterable[ServedPictures] = ()) -> None:
        self._served = tuple(served)
        self._pictures = {model.name: model for model in pictures}
        self._by_name: dict[str, ServedModel] = {}
        for model in self._served:
            for name in (model.name, *model.aliases):
                if self._by_name.setdefault(name, model) is not model:
                    raise ConfigError(f"Two served models are called '{name}': give one of them another name.")

    def __repr__(self) -> str:
        return f"Models({', '.join(model.name for model in self.all())})"

    def all(self) -> tuple[ServedModel, ...]:
        """Those that are open: their tokenizer is in memory, their engine need not be."""
        return self._served

    def pinned(self) -> tuple[ServedModel, ...]:
        """Those that must answer at any time; readiness asks them."""
        return self.all()

    def absent(self) -> tuple[str, ...]:
        """Names of pinned models that have been removed."""
        return ()

    def engines(self) -> Mapping[str, Engine]:
        """The engine of every model that has been open, by the model's name."""
        return {model.name: model.engine for model in self.all()}

    def observed(self) -> Mapping[str, Observed]:
        """The engines of all kinds of every model that has been open, by the model's name."""
        return self.engines()

    async def cards(self) -> tuple[ModelCard, ...]:
        """Every model that may be asked."""
        return tuple(card_of(model) for model in self.all())

    def status(self) -> PoolStatus:
        models = tuple(
            ModelStatus(
                name=model.name,
                digest=model.digest,
                state=_state_of(model.engine),
                pinned=True,
                memory_bytes=0,
                needs_bytes=None,
                waiting=0,
                active=0,
                expires_s=None,
                pid=None if model.engine.info is None else model.engine.info.pid,
            )
            for model in self.all()
        )
        return PoolStatus(budget_bytes=None, granted_bytes=0, loads=0, evictions=0, models=models)

    async def open(self, name: str, *, keep_alive_s: float | None = None) -> ServedModel:
        """The model, ready to take a task; may wait for files to be read, but not for its engine.

        Args:
            keep_alive_s: How long it stays loaded after the answer; infinite for ever, None for the model's setting.

        Raises:
            ModelNotFound: There is no such model here.
            BadModelFile, UnsupportedModel: It is here and cannot be served.
        """
        del keep_alive_s  # these are always loaded
        return self.get(name)

    async def open_pictures(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedPictures:
        """As `open`, for a model that draws.

        Args:
            name: None for the first one that there is.

        Raises:
            ModelNotFound: There is no such model here, or none that draws.
        """
        del keep_alive_s
        model = next(iter(self._pictures.values()), None) if name is None else self._pictures.get(name)
        if model is None:
            raise no_pictures() if name is None else unknown_model(name, self._pictures)
        return model

    async def open_encoder(self, role: Role, name: str | None, *, keep_alive_s: float | None = None) -> ServedEncoder:
        """As `open`, for a model that answers an input at once.

        Args:
            role: What it must be for.
            name: None for the first one that there is.

        Raises:
            ModelNotFound: There is no such model here, or none for this role.
            InvalidRequest: It is for something else.
        """
        del keep_alive_s
        raise no_encoder(role) if name is None else unknown_model(name, [model.name for model in self.all()])

    async def open_listener(self, name: str | None, *, keep_alive_s: float | None = None) -> ServedListener:
        """As `open`, for a model that writes what is said; None for the first one that there is.

        Raises:
            ModelNotFound: There is no such model here, or none for speech.
            InvalidRequest: It is for something else.
        """
        del keep_alive_s
        raise no_encoder("speech-to-text") if name is None else unknown_model(name, [one.name for one in self.all()])

    async def load(self, name: str) -> None:
        """Load it now. Raises what `open` and its engine's `submit` raise."""
        await self.open(name)

    async def unload(self, name: str) -> None:
        """Unload it as soon as it is idle.

        Raises:
            InvalidRequest: It is pinned.
        """
        raise pinned_error((await self.open(name)).name)

    def get(self, name: str) -> ServedModel:
        """One that is open; raises `ModelNotFound` (404, `model_not_found`) naming what exists."""
        model = self._by_name.get(name)
        if model is None:
            raise unknown_model(name, [model.name for model in self._served])
        return model


def card_of(model: ServedModel) -> ModelCard:
    """A model that is open."""
    return ModelCard(
        name=model.name,
        aliases=model.aliases,
        context=model.context,
        digest=model.digest,
        created=model.created,
        owned_by=model.owned_by,
        chat=model.template is not None,
        loaded=model.engine.state == "ready",
        media=() if model.layout is None else tuple(model.layout.markers),
    )


def unknown_model(name: str, known: Iterable[str]) -> ModelNotFound:
    names = ", ".join(f"'{one}'" for one in known) or "none"
    shown = name if len(name) <= 100 else name[:100] + "..."
    return ModelNotFound(f"The model '{shown}' does not exist here. Models served: {names}.", param="model")


def no_pictures() -> ModelNotFound:
    return ModelNotFound(
        "No model here draws pictures: `edgewise models list` shows which can be pulled (role diffusion).",
        param="model",
    )


def no_encoder(role: Role) -> ModelNotFound:
    return ModelNotFound(
        f"No model for {role} is installed: `edgewise models list` shows which can be pulled.",
        param="model",
    )


def wrong_role(name: str, role: str) -> InvalidRequest:
    """A model was asked for what it is not for."""
    return InvalidRequest(f"The model '{name}' is for {_FOR.get(role, role)}.", param="model")


_FOR: Mapping[str, str] = {
    "llm": "text",
    "diffusion": "drawing pictures",
    "vision": "labels of pictures",
    "ocr": "text in pictures",
    "embeddings": "vectors of texts",
    "rerank": "ranking texts",
    "text-to-speech": "speech",
    "speech-to-text": "transcription",
    "vad": "telling speech from silence",
}


def pinned_error(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"The model '{name}' is pinned: it stays loaded until `model` and `pool.pinned` in the configuration name it no more.",
        param="model",
    )


def _state_of(engine: Engine) -> ModelState:
    if engine.state == "stopped":
        return "unloaded"
    return "loaded" if engine.state == "ready" else "loading"
