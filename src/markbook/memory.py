"""How much memory a run takes, estimated from a model's configuration alone.

Each part is a formula of its own. What is not counted: the allocator's reserve and the GPU
context (some hundred MiB), and what transformers keeps for a moment within one layer.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from markbook.adapters import add_adapters
from markbook.recipe import LoraRecipe

BYTES = {"float32": 4, "bfloat16": 2}
"""Of one number of each type."""


@dataclass(frozen=True)
class Shape:
    """What of a model's configuration its memory depends on, in numbers per token and layer."""

    num_layers: int
    hidden: int
    query: int
    """Queries of all heads together."""
    key_value: int
    """Keys and values together, as attention computes with them."""
    cached: int
    """What of them the KV cache keeps; less only where it holds a compressed form."""
    intermediate: int
    """Width of the feed-forward layer; with experts, of all those that one token passes."""
    vocabulary: int
    num_window_layers: int = 0
    """How many layers look back no further than `window` tokens."""
    num_uncached_layers: int = 0
    """How many layers keep a state of fixed size instead of a cache."""
    window: int = 0


def shape_of(config: PreTrainedConfig) -> Shape:
    """Read the shape out of a configuration."""
    text: Any = config.get_text_config()
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    kinds = list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers)
    window = getattr(text, "sliding_window", None) or 0
    num_window = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    attends = sum(kind.endswith("attention") and "linear" not in kind for kind in kinds)
    if getattr(
        text, "kv_lora_rank", None
    ):  # multi-head latent attention, arXiv 2405.04434 sec. 2.1
        rotary = int(text.qk_rope_head_dim)
        query = heads * (int(text.qk_nope_head_dim) + rotary)
        key_value = query + heads * int(text.v_head_dim)
        cached = int(text.kv_lora_rank) + rotary
    else:
        head = int(getattr(text, "head_dim", None) or hidden // heads)
        query = heads * head
        key_value = 2 * head * int(getattr(text, "num_key_value_heads", None) or heads)
        cached = key_value
    return Shape(
        num_layers=int(text.num_hidden_layers),
        hidden=hidden,
        query=query,
        key_value=key_value,
        cached=cached,
        intermediate=_intermediate(text, hidden),
        vocabulary=int(text.vocab_size),
        num_window_layers=num_window if window else 0,
        num_uncached_layers=len(kinds) - attends,
        window=int(window),
    )


def _intermediate(text: Any, hidden: int) -> int:
    """Return the width of a feed-forward layer, over all experts that one token passes."""
    expert = getattr(text, "moe_intermediate_size", None)
    if expert:
        shared = getattr(text, "n_shared_experts", None) or 0
        return int(expert) * (int(text.num_experts_per_tok) + int(shared))
    width = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    return int(width or 4 * hidden)


def count_parameters(config: PreTrainedConfig, lora: LoraRecipe) -> tuple[int, int]:
    """Return how many parameters a model has, adapters included, and how many are trained.

    The model is built without its weights (on torch's `meta` device), so this is exact and takes
    no memory.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        if lora.rank:
            add_adapters(model, lora, seed=0)
    total = sum(p.numel() for p in model.parameters())
    return total, sum(p.numel() for p in model.parameters() if p.requires_grad)


def kv_cache_bytes(shape: Shape, rows: int, tokens: int, number: int) -> int:
    """Return the size of the cache of `rows` sequences of `tokens` tokens, `number` bytes each.

    rows * tokens * layers * cached * number, layers with a window keeping `window` tokens at most.

    >>> llama_3_8b = Shape(32, 4096, 4096, 2048, 2048, 14336, 128256)
    >>> kv_cache_bytes(llama_3_8b, rows=1, tokens=8192, number=2) == 2**30
    True
    """
    full = shape.num_layers - shape.num_window_layers - shape.num_uncached_layers
    positions = full * tokens + shape.num_window_layers * min(tokens, shape.window)
    return rows * positions * shape.cached * number


def activation_bytes(shape: Shape, tokens: int, number: int) -> int:
    """Return what autograd keeps of `tokens` tokens until the backward pass, without the logits.

    Per token and layer of a Llama-like model with fused attention: of each of the two norms its
    float32 input, its normalised input and its output; queries, keys and values after rotation
    and the attention's output; of the feed-forward layer gate, activated gate, up and product:

        2 (4 + 2 b) hidden + b (2 query + key_value + 4 intermediate)        b = bytes per number

    >>> activation_bytes(Shape(2, 64, 64, 64, 64, 192, 320), tokens=1, number=4)
    10752
    """
    norms = 2 * (4 + 2 * number) * shape.hidden
    rest = number * (2 * shape.query + shape.key_value + 4 * shape.intermediate)
    return tokens * shape.num_layers * (norms + rest)


def training_logit_bytes(tokens: int, vocabulary: int, number: int) -> int:
    """Return what a micro-batch's logits take at their peak.

    The logits themselves, and in float32 their log-probs and three more of that size: for the
    entropy going forward, for the gradient going back.

    >>> training_logit_bytes(1000, 50_000, number=2)
    900000000
    """
    return tokens * vocabulary * (number + 4 * 4)


def sampling_logit_bytes(rows: int, vocabulary: int, number: int) -> int:
    """Return what drawing one token for each row takes at its peak.

    The logits, in float32 the scaled ones and their log-probs, and in float64 the log-probs, the
    probabilities and their running sum.

    >>> sampling_logit_bytes(256, 50_000, number=2)
    435200000
    """
    return rows * vocabulary * (number + 2 * 4 + 3 * 8)


@dataclass(frozen=True)
class Memory:
    """What a run holds, in bytes."""

    weights: int
    masters: int
    """Float32 copies of the trained weights, which the optimiser moves, where they aren't float32
    themselves."""
    gradients: int
    """Those of the weights and those of the float32 copies."""
    moments: int
    """AdamW's two, in float32."""
    reference: int
    """The trained weights as they were, for the KL term."""
    kv_cache: int
    sampling_logits: int
    activations: int
    training_logits: int

    @property
    def always(self) -> int:
        """What is there in every phase."""
        return self.weights + self.masters + self.moments + self.reference

    @property
    def sampling(self) -> int:
        """The peak while sampling."""
        return self.always + self.kv_cache + self.sampling_logits

    @property
    def training(self) -> int:
        """The peak while training."""
        return self.always + self.gradients + self.activations + self.training_logits

    @property
    def peak(self) -> int:
        """The peak of the run."""
        return max(self.sampling, self.training)


def estimate(
    shape: Shape,
    total: int,
    trained: int,
    dtype: str,
    *,
    reference: bool,
    sampled_rows: int,
    prompt_tokens: int,
    max_tokens: int,
    micro_batch_rows: int,
) -> Memory:
    """Return the memory of a run whose sequences all reach their greatest length.

    `total` and `trained` count parameters; `sampled_rows` sequences are sampled side by side and
    `micro_batch_rows` go through the model at once in training, each of `prompt_tokens` and
    `max_tokens` more.
    """
    number = BYTES[dtype]
    copies = 0 if dtype == "float32" else 4 * trained
    length = prompt_tokens + max_tokens
    return Memory(
        weights=number * total,
        masters=copies,
        gradients=number * trained + copies,
        moments=2 * 4 * trained,
        reference=number * trained if reference else 0,
        kv_cache=kv_cache_bytes(shape, sampled_rows, length, number),
        sampling_logits=sampling_logit_bytes(sampled_rows, shape.vocabulary, number),
        activations=activation_bytes(shape, micro_batch_rows * length, number),
        training_logits=training_logit_bytes(
            micro_batch_rows * max_tokens, shape.vocabulary, number
        ),
    )


def available_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux: all of it is the best guess there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kilobytes["MemAvailable"] * 1024
