"""What sets the families of tiny models apart: configuration, GGUF header, special tokens, chat template, fused tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from edgewise.models.tiny_vocab import CHATML_TEMPLATE, SPECIAL_TOKENS

Family = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "gemma2",
    "gemma3",
    "phi3",
    "glm",
    "glm4",
    "mixtral",
    "qwen3_moe",
]

EXPERTS, EXPERTS_PER_TOKEN = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle:
    """How a conversation is written. `special`: the first ends a text, the second begins one or a turn, the third ends a turn."""

    special: tuple[str, ...]
    template: str


CHATML = ChatStyle(special=SPECIAL_TOKENS, template=CHATML_TEMPLATE)
_TURNS = (
    "{{% for message in messages %}}"
    "{{{{ {before} + message['content'] + {after} }}}}"
    "{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ {answer} }}}}{{% endif %}}"
)
GEMMA = ChatStyle(
    special=("<eos>", "<bos>", "<end_of_turn>", "<start_of_turn>"),
    template="{{ bos_token }}"
    + _TURNS.format(
        before="'<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n'",
        after="'<end_of_turn>\\n'",
        answer="'<start_of_turn>model\\n'",
    ),
)
PHI = ChatStyle(
    special=("<|endoftext|>", "<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    template=_TURNS.format(
        before="'<|' + message['role'] + '|>\\n'", after="'<|end|>\\n'", answer="'<|assistant|>\\n'"
    ),
)
GLM = ChatStyle(
    special=("<|endoftext|>", "[gMASK]", "<|user|>", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>"),
    template="[gMASK]<sop>"
    + _TURNS.format(before="'<|' + message['role'] + '|>\\n'", after="''", answer="'<|assistant|>'"),
)
MISTRAL = ChatStyle(
    special=("</s>", "<s>", "<unk>", "[INST]", "[/INST]"),
    template="{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ '[INST] ' + message['content'] + '[/INST]' }}{% endif %}"
    "{% endfor %}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """A family's particulars.

    Attributes:
        architecture: Hugging Face class.
        gguf: Architecture in GGUF headers; None where it has none of its own.
        chat: Special tokens and template.
        ends_turn: Index of the special token that ends an answer.
        offset_norms: Norm weights are stored less 1.
        post_norms: Stored names of the norms after attention, before feed-forward and after it; None where only the second is.
        fused_qkv, fused_gate: Matrices stored as one.
        qk_norms: Query and key heads are normalised.
        qkv_bias: Their products add a bias.
        paired: GGUF stores the rotating dimensions of heads in pairs, and the checkpoint in halves.
        experts: Names of router, gate, up and down matrices with the expert's number; None without experts.
        config: Entries of config.json beyond those of all families.
        header: Entries of the GGUF header beyond those of all families, without the architecture's prefix.
    """

    architecture: str
    gguf: str | None
    chat: ChatStyle = CHATML
    ends_turn: int = 2
    offset_norms: bool = False
    post_norms: tuple[str, str, str] | None = None
    qk_norms: bool = False
    qkv_bias: bool = False
    fused_qkv: bool = False
    fused_gate: bool = False
    paired: bool = False
    experts: tuple[str, str, str, str] | None = None
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    header: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_GEMMA_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_GLM4_NORMS = ("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
_QWEN_EXPERTS = (
    "mlp.gate",
    "mlp.experts.{}.gate_proj",
    "mlp.experts.{}.up_proj",
    "mlp.experts.{}.down_proj",
)
_MIXTRAL_EXPERTS = (
    "block_sparse_moe.gate",
    "block_sparse_moe.experts.{}.w1",
    "block_sparse_moe.experts.{}.w3",
    "block_sparse_moe.experts.{}.w2",
)
_WINDOW = 32
_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": _WINDOW,
    "final_logit_softcapping": 30.0,
}
_EXPERTS_HEADER = {"expert_count": EXPERTS, "expert_used_count": EXPERTS_PER_TOKEN}

TINY_FAMILIES: Mapping[Family, TinyFamily] = {
    "llama": TinyFamily(architecture="LlamaForCausalLM", gguf="llama", paired=True),
    "mistral": TinyFamily(architecture="MistralForCausalLM", gguf=None, config={"sliding_window": None}),
    "qwen2": TinyFamily(architecture="Qwen2ForCausalLM", gguf="qwen2", qkv_bias=True),
    "qwen3": TinyFamily(architecture="Qwen3ForCausalLM", gguf="qwen3", qk_norms=True),
    "smollm3": TinyFamily(
        architecture="SmolLM3ForCausalLM", gguf="smollm3", paired=True, config={"no_rope_layer_interval": 4}
    ),
    "gemma2": TinyFamily(
        architecture="Gemma2ForCausalLM",
        gguf="gemma2",
        chat=GEMMA,
        offset_norms=True,
        post_norms=_GEMMA_NORMS,
        config={**_GEMMA, "attn_logit_softcapping": 50.0},
        header={
            "attention.sliding_window": _WINDOW,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": TinyFamily(
        architecture="Gemma3ForCausalLM",
        gguf="gemma3",
        chat=GEMMA,
        offset_norms=True,
        post_norms=_GEMMA_NORMS,
        qk_norms=True,
        config={**_GEMMA, "sliding_window_pattern": 2, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        header={
            "attention.sliding_window": _WINDOW,
            "attention.sliding_window_pattern": 2,
            "final_logit_softcapping": 30.0,
            "rope.freq_base": 1_000_000.0,
        },
    ),
    "phi3": TinyFamily(
        architecture="Phi3ForCausalLM",
        gguf="phi3",
        chat=PHI,
        fused_qkv=True,
        fused_gate=True,
        config={"sliding_window": None},
        header={"attention.sliding_window": 0},
    ),
    "glm": TinyFamily(
        architecture="GlmForCausalLM",
        gguf="chatglm",
        chat=GLM,
        qkv_bias=True,
        fused_gate=True,
        config={"attention_bias": True, "partial_rotary_factor": 0.5},
    ),
    "glm4": TinyFamily(
        architecture="Glm4ForCausalLM",
        gguf="glm4",
        chat=GLM,
        post_norms=_GLM4_NORMS,
        qkv_bias=True,
        fused_gate=True,
        config={"attention_bias": True, "partial_rotary_factor": 0.5},
    ),
    "mixtral": TinyFamily(
        architecture="MixtralForCausalLM",
        gguf="llama",
        chat=MISTRAL,
        ends_turn=0,
        paired=True,
        experts=_MIXTRAL_EXPERTS,
        config={"num_local_experts": EXPERTS, "num_experts_per_tok": EXPERTS_PER_TOKEN, "sliding_window": None},
        header=_EXPERTS_HEADER,
    ),
    "qwen3_moe": TinyFamily(
        architecture="Qwen3MoeForCausalLM",
        gguf="qwen3moe",
        qk_norms=True,
        experts=_QWEN_EXPERTS,
        config={
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        header=_EXPERTS_HEADER,
    ),
}
FAMILIES: tuple[Family, ...] = tuple(TINY_FAMILIES)
