"""Tiny models and their tokenizer, made once a session: no test needs a network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

TEXT = [
    "What is 12 + 7? <think>\n12 + 7 = 19\n</think>\n<answer>\\boxed{19}</answer>",
    "A conversation between User and Assistant. User: How many? Assistant: <think> </think>",
]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Wider than usual, so that an untrained model already prefers some tokens to others.
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level BPE of 320 tokens: id 0 pads, id 1 (`<end>`) ends a text; it adds no BOS.

    The unknown token, which a byte-level tokenizer never needs, is named because Qwen's tokenizer
    class would else add one of its own, for which the models have no embedding.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    )


def _make(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    kind: type[PreTrainedModel],
    config: type[PreTrainedConfig],
    **changes: object,
) -> Path:
    torch.manual_seed(0)
    settings = {
        **SIZES,
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **changes,
    }
    model = kind(config(**settings))
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase
) -> Path:
    """The directory of a Llama of 31,000 parameters, float32, with an output layer of its own."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return _make(folder, tiny_tokenizer, LlamaForCausalLM, LlamaConfig, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def tiny_qwen2(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase
) -> Path:
    """The directory of a Qwen2 (biases in attention) with tied embeddings."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    return _make(folder, tiny_tokenizer, Qwen2ForCausalLM, Qwen2Config, tie_word_embeddings=True)


@pytest.fixture(scope="session")
def tiny_qwen3(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase
) -> Path:
    """The directory of a Qwen3 (normed queries and keys, heads of size 16), tied embeddings."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    return _make(
        folder, tiny_tokenizer, Qwen3ForCausalLM, Qwen3Config, tie_word_embeddings=True, head_dim=16
    )
