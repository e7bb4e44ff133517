from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from markbook.memory import (
    Shape,
    activation_bytes,
    available_bytes,
    count_parameters,
    estimate,
    kv_cache_bytes,
    sampling_logit_bytes,
    shape_of,
    training_logit_bytes,
)
from markbook.recipe import LoraRecipe

QWEN = Qwen2Config(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
"""The numbers of Qwen2.5-0.5B."""

TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_shapes_by_hand() -> None:
    assert shape_of(QWEN) == Shape(
        num_layers=24,
        hidden=896,
        query=896,
        key_value=256,  # 2 heads of 64, keys and values
        cached=256,
        intermediate=4864,
        vocabulary=151_936,
    )
    # 128 heads of 128 + 64; values of 128; 512 + 64 cached; 8 + 1 experts of 2,048.
    deepseek = shape_of(DeepseekV3Config())
    assert (deepseek.query, deepseek.key_value) == (24_576, 40_960)
    assert (deepseek.cached, deepseek.intermediate) == (576, 18_432)
    gpt2 = shape_of(GPT2Config())
    assert (gpt2.query, gpt2.key_value, gpt2.intermediate) == (768, 1536, 3072)
    windowed = shape_of(
        Qwen3Config(
            **TINY, head_dim=16, use_sliding_window=True, sliding_window=8, max_window_layers=1
        )
    )
    assert (windowed.num_window_layers, windowed.window) == (1, 8)


def test_parameters_of_published_models() -> None:
    """494,032,768 is what the model card's 0.49B is exactly; 671B is DeepSeek-V3's."""
    assert count_parameters(QWEN, LoraRecipe()) == (494_032_768, 494_032_768)
    # Rank 8 on 24 layers: q and o 896 + 896, k and v 896 + 128, gate, up, down 896 + 4864.
    adapters = 24 * 8 * (2 * 1792 + 2 * 1024 + 3 * 5760)
    assert count_parameters(QWEN, LoraRecipe(rank=8)) == (494_032_768 + adapters, adapters)


def test_parameters_are_those_of_the_model_itself(tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    total = sum(p.numel() for p in model.parameters())
    assert count_parameters(model.config, LoraRecipe()) == (total, total)


@pytest.mark.parametrize("tokens", [5, 8, 20])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**TINY),
        Qwen3Config(**TINY, head_dim=32),
        Qwen3Config(
            **TINY, head_dim=32, use_sliding_window=True, sliding_window=8, max_window_layers=1
        ),
        DeepseekV3Config(
            **(TINY | {"num_key_value_heads": 4}),
            moe_intermediate_size=16,
            kv_lora_rank=24,
            q_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
        ),
    ],
)
def test_cache_is_as_large_as_the_real_one(config: PreTrainedConfig, tokens: int) -> None:
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        cache: Any = model(torch.ones(3, tokens, dtype=torch.long), use_cache=True).past_key_values
    real = sum(part.numel() * 4 for layer in cache.layers for part in (layer.keys, layer.values))
    shape = shape_of(config)
    # Between two tokens a window keeps one position less than it looks back.
    idle = 3 * shape.num_window_layers * shape.cached * 4 if tokens >= shape.window else 0
    assert kv_cache_bytes(shape, rows=3, tokens=tokens, number=4) == real + idle


def test_cache_by_hand() -> None:
    # A layer that looks back 8 tokens and one that looks back all 20; 256 values a token, 2 bytes.
    shape = Shape(
        3, 64, 64, 256, 256, 192, 320, num_window_layers=1, num_uncached_layers=1, window=8
    )
    assert kv_cache_bytes(shape, rows=1, tokens=20, number=2) == (8 + 20) * 256 * 2
    # DeepSeek-V3: 61 layers of 576 values, 2 bytes each: 70,272 bytes a token.
    assert kv_cache_bytes(shape_of(DeepseekV3Config()), rows=1, tokens=1, number=2) == 70_272


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [LlamaConfig(**TINY), Qwen2Config(**TINY)])
def test_activations_are_what_autograd_keeps(config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Measured per layer, so that what is there once per model does not count."""

    def kept(num_layers: int) -> int:
        config.num_hidden_layers = num_layers
        if hasattr(config, "layer_types"):
            config.layer_types = ["full_attention"] * num_layers
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        held: dict[int, torch.Tensor] = {}

        def hold(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            output = model.model(torch.ones(2, 50, dtype=torch.long), use_cache=False)
        assert output.last_hidden_state.requires_grad
        return sum(tensor.untyped_storage().nbytes() for tensor in held.values())

    measured = kept(4) - kept(2)
    config.num_hidden_layers = 2
    number = 4 if dtype == torch.float32 else 2
    assert activation_bytes(shape_of(config), tokens=100, number=number) == pytest.approx(
        measured, rel=0.03
    )


def test_logits_by_hand() -> None:
    assert training_logit_bytes(tokens=10, vocabulary=100, number=4) == 10 * 100 * 20
    assert sampling_logit_bytes(rows=10, vocabulary=100, number=2) == 10 * 100 * 34


def test_estimate_by_hand() -> None:
    """100 parameters of which 40 are trained, one layer of width 1, a vocabulary of 1."""
    shape = Shape(1, 1, 1, 2, 2, 1, 1)
    choices: dict[str, Any] = {
        "reference": True,
        "sampled_rows": 3,
        "prompt_tokens": 4,
        "max_tokens": 6,
        "micro_batch_rows": 2,
    }
    half = estimate(shape, 100, 40, "bfloat16", **choices)
    assert (half.weights, half.masters, half.moments, half.reference) == (200, 160, 320, 80)
    assert half.gradients == 80 + 160
    assert half.kv_cache == 3 * 10 * 2 * 2
    assert half.activations == 20 * (2 * 8 + 2 * (2 + 2 + 4))
    assert half.training_logits == 2 * 6 * 18
    assert half.sampling_logits == 3 * 34
    assert half.sampling == 760 + 120 + 102
    assert half.training == half.peak == 760 + 240 + 640 + 216

    full = estimate(shape, 100, 100, "float32", **(choices | {"reference": False}))
    assert (full.weights, full.masters, full.moments, full.reference) == (400, 0, 800, 0)
    assert full.gradients == 400


def test_available_memory_is_that_of_a_machine() -> None:
    assert 2**26 < available_bytes(torch.device("cpu")) < 2**46
