"""How an engine is to be built. Sent to the engine process at start; no settings file is read there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgewise.core.log import get_logger
from edgewise.engine.vocabulary import Vocabulary
from edgewise.models.files import ModelFiles

log = get_logger(__name__)

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
KVDtypeName = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
SpeculationName = Literal["auto", "off", "lookup", "draft"]
QuantizeName = Literal["auto", "none", "int8", "int4", "fp8"]
KernelsName = Literal["auto", "reference", "native", "triton"]
KernelTuningName = Literal["cached", "load", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine process needs to know.

    Attributes:
        model: Files of the model, resolved by the store.
        device: "auto" takes CUDA if it is usable, else the CPU.
        dtype, kv_dtype, quantize, kernels: "auto" is resolved by the engine and reported in `EngineInfo`.
        max_context: Upper bound on prompt + answer; None takes the model's own.
        kv_memory_bytes: Size of the KV cache; None lets the ledger choose from what is available.
        memory_fraction: Share of available memory that the ledger may book in total.
        max_running, max_waiting: Sequences in the batch / in the queue before 429.
        max_step_tokens: Largest number of tokens in one step (upper bound of a prefill chunk).
        threads: CPU threads for kernels; None takes all cores.
        prefix_cache: Share KV pages of equal prefixes.
        prefill_step_s: Time aimed at for a step that computes prompts while nobody waits for a next token, in seconds.
        ageing_s: Seconds in the queue after which a request counts as one class more urgent; 0 for never.
        spill_bytes: Host memory for pages of preempted requests; None takes what is left, up to the size of the KV cache.
        measured_kv: KV formats that passed the model's gate; "auto" takes one of them. None if it was not measured.
        failed_weights: Weight formats that the model's gate has measured and not passed; "auto" takes none of them.
        memory_budget_bytes: What this engine may book in all; None takes `memory_fraction` of what is available.
        host_cache_bytes: Host memory for KV pages that left the device; 0 for none.
        disk_cache_dir, disk_cache_bytes: Folder and size of the KV tier that survives a restart; None and 0 for none.
        disk_cache_key: What besides model and KV format the stored pages depend on (digest of tokenizer and template).
        handover_bytes: Host memory where KV pages of other appliances arrive, if no tier gives as much; 0 takes none.
        encoder_cache_bytes: Memory of the device for the rows of media, where the model takes media.
        encoder_ladders: Folder of the records of the model's own encoder's ladder, whose winner then encodes; None for torch.
        encoder_form_bytes: Memory that is kept for such a winner beside the rows of media.
        encoder_climb: How that ladder is climbed beside requests, as `models.encoders.rung.place_of` reads it; empty for none.
        media_bytes: Bytes of decoded media that the requests in work may hold in all.
        vocabulary: Spelling of every token, for answers that follow a grammar; None refuses them.
        tensor_parallel: Devices that compute the model together, each a share of it.
        adapters: Whether requests name adapters, which a decoder on the kernels "reference" or "native" computes.
        adapter_bytes: Memory of the device for adapters, where `adapters`.
        speculation: Guesses at next tokens: "auto" where they are measured to pay, "lookup" or "draft" always, "off" never.
        draft: A smaller model of the same vocabulary that guesses; None for none.
        kernel_tuning: How Triton's kernels are launched: "cached" as was measured on this card before, "load" measures at load
            where that is missing, "off" by defaults.
        kernel_cache_dir: Folder of those measurements; None for defaults.
        turns: File in which engine processes take turns on one device (`engine.turns`); None runs without regard to others.
        stream_interval_s: How long a token may wait to be sent together with the next ones, in seconds; 0 sends each by itself.
    """

    model: ModelFiles
    device: str = "auto"
    dtype: DtypeName = "auto"
    kv_dtype: KVDtypeName = "auto"
    quantize: QuantizeName = "auto"
    kernels: KernelsName = "auto"
    max_context: int | None = None
    kv_memory_bytes: int | None = None
    memory_fraction: float = 0.8
    max_running: int = 32
    max_waiting: int = 256
    max_step_tokens: int = 512
    threads: int | None = None
    prefix_cache: bool = True
    prefill_step_s: float = 0.05
    ageing_s: float = 60.0
    spill_bytes: int | None = None
    measured_kv: tuple[str, ...] | None = None
    failed_weights: tuple[str, ...] = ()
    memory_budget_bytes: int | None = None
    host_cache_bytes: int = 0
    disk_cache_dir: str | None = None
    disk_cache_bytes: int = 0
    disk_cache_key: str = ""
    handover_bytes: int = 0
    encoder_cache_bytes: int = 128 << 20
    encoder_ladders: str | None = None
    encoder_form_bytes: int = 0
    encoder_climb: Mapping[str, str] = field(default_factory=dict)
    media_bytes: int = 256 << 20
    vocabulary: Vocabulary | None = field(default=None, repr=False)
    tensor_parallel: int = 1
    adapters: bool = False
    adapter_bytes: int = 64 << 20
    speculation: SpeculationName = "auto"
    draft: ModelFiles | None = None
    kernel_tuning: KernelTuningName = "cached"
    kernel_cache_dir: str | None = None
    turns: str | None = None
    stream_interval_s: float = 0.0


def for_adapters(config: EngineConfig, *, cuda: bool) -> EngineConfig:
    """The configuration with kernels that compute adapters, where it leaves the choice: on a card only the reference's do, over
    weights that are not rounded. `cuda`: a device is usable."""
    on_card = config.device == "cuda" or (config.device == "auto" and cuda)
    if not config.adapters or not on_card or config.kernels != "auto":
        return config
    log.info("kernels_of_adapters", model=config.model.name, kernels="reference", reason="Triton's compute no adapters")
    return replace(config, kernels="reference", quantize="none")
