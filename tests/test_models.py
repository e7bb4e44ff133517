import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3MoeConfig,
    T5Config,
)
from transformers.utils import logging

from markbook.adapters import add_adapters, merged_weights
from markbook.errors import MarkbookError
from markbook.models import (
    check_vocabulary,
    context_length,
    end_token_ids,
    load_model,
    load_tokenizer,
    resolve_device,
    save_model,
)
from markbook.recipe import LoraRecipe, ModelRecipe
from markbook.source import _snapshot

CPU = torch.device("cpu")
LORA = LoraRecipe(rank=4, alpha=8.0)


@pytest.fixture(params=["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def directory(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture(autouse=True)
def _nothing_printed(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No test of loading or saving may leave a bar or a notice on stderr."""
    yield
    assert capfd.readouterr().err == ""


def edit(directory: Path, file: str, **changes: Any) -> None:
    """Change values of a JSON file; `...` leaves the key out."""
    path = directory / file
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({k: v for k, v in (table | changes).items() if v is not ...}))


def load(path: Path, **choices: Any) -> PreTrainedModel:
    return load_model(ModelRecipe(path=str(path), **choices), CPU)


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    result: torch.Tensor = model(torch.tensor([[5, 60, 7, 300, 9]])).logits
    return result


def plain(path: Path) -> PreTrainedModel:
    """Load as somebody without markbook would."""
    logging.disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path)
    logging.enable_progress_bar()
    return model


def test_loads_what_plain_transformers_loads(directory: Path) -> None:
    model = load(directory)
    assert torch.equal(logits(model), logits(plain(directory)))
    assert not model.training
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    tokenizer = load_tokenizer(ModelRecipe(path=str(directory)))
    check_vocabulary(model, tokenizer)
    assert end_token_ids(model, tokenizer) == {1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_save_and_reload_gives_the_same_bits(directory: Path, tmp_path: Path, dtype: str) -> None:
    model = load(directory, dtype=dtype)
    tokenizer = load_tokenizer(ModelRecipe(path=str(directory)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    save_model(model, tokenizer, tmp_path)
    again = plain(tmp_path)
    assert again.dtype == model.dtype == getattr(torch, dtype)
    assert torch.equal(logits(again), logits(model))
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()
    assert again.generation_config.eos_token_id == 1
    assert again.generation_config.pad_token_id == 0


def test_bfloat16_is_the_rounded_model(tiny_llama: Path) -> None:
    full, half = load(tiny_llama), load(tiny_llama, dtype="bfloat16")
    for a, b in zip(full.parameters(), half.parameters(), strict=True):
        assert b.dtype == torch.bfloat16
        assert torch.equal(a.bfloat16(), b)


def test_pickled_weights_load_too(copy: Path) -> None:
    expected = logits(load(copy))
    torch.save(load(copy).state_dict(), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert torch.equal(logits(load(copy)), expected)


# Adapters


def test_adapters_begin_as_nothing_and_alone_are_trained(directory: Path) -> None:
    model = load(directory, lora=LORA)
    assert torch.equal(logits(model), logits(load(directory)))
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    # 2 layers of q, k, v, o, gate, up, down, each with two factors; the output layer has none.
    assert len(trained) == 28
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    assert not model.training


def test_adapters_follow_from_the_seed_alone(tiny_llama: Path) -> None:
    def factors(seed: int) -> list[torch.Tensor]:
        recipe = ModelRecipe(path=str(tiny_llama), lora=LORA)
        torch.manual_seed(torch.randint(1000, ()).item())  # another state each time
        model = load_model(recipe, CPU, seed=seed)
        return [p.detach() for n, p in model.named_parameters() if ".lora_A." in n]

    before = torch.get_rng_state()
    first, same, other = factors(3), factors(3), factors(4)
    assert all(map(torch.equal, first, same))
    assert not any(map(torch.equal, first, other))
    torch.set_rng_state(before)
    load_model(ModelRecipe(path=str(tiny_llama), lora=LORA), CPU, seed=9)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_adapters_are_merged(directory: Path, tmp_path: Path, dtype: str) -> None:
    model = load(directory, lora=LORA, dtype=dtype)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.5)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    expected = logits(model)
    assert not torch.allclose(expected, logits(load(directory, dtype=dtype)), atol=0.1)
    save_model(model, load_tokenizer(ModelRecipe(path=str(directory))), tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    again = plain(tmp_path)
    assert again.dtype == getattr(torch, dtype)
    tolerance = 1e-4 if dtype == "float32" else 0.3
    assert torch.allclose(logits(again), expected, atol=tolerance)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_merged_weight_by_hand(tiny_llama: Path) -> None:
    """W + alpha / rank * B A, with alpha / rank = 2, A of ones and B of halves: every entry + 4."""
    model = load(tiny_llama, lora=LORA)
    layer: Any = model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(1.0)
        layer.lora_B["default"].weight.fill_(0.5)
    merged = merged_weights(model)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.allclose(merged[name], load(tiny_llama).state_dict()[name] + 4.0)
    assert merged.keys() == load(tiny_llama).state_dict().keys()


def test_transposed_layers_merge_too(tmp_path: Path, tiny_tokenizer: Any) -> None:
    """GPT-2 keeps its weights the other way round."""
    config = GPT2Config(
        vocab_size=320, n_positions=64, n_embd=16, n_layer=1, n_head=2, eos_token_id=1
    )
    logging.disable_progress_bar()
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    logging.enable_progress_bar()
    tiny_tokenizer.save_pretrained(tmp_path / "gpt2")
    model = load(tmp_path / "gpt2", lora=LORA)
    assert context_length(model) == 64
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.5)
    save_model(model, tiny_tokenizer, tmp_path / "saved")
    assert torch.allclose(logits(plain(tmp_path / "saved")), logits(model), atol=1e-4)


def test_named_targets(tiny_llama: Path) -> None:
    model = load(tiny_llama, lora=LoraRecipe(rank=2, target_modules=("q_proj", "down_proj")))
    held = {n.split(".lora_")[0] for n, p in model.named_parameters() if p.requires_grad}
    assert held == {
        f"model.layers.{i}.{m}" for i in (0, 1) for m in ("self_attn.q_proj", "mlp.down_proj")
    }


def test_unknown_target_is_refused_even_beside_a_known_one(tiny_llama: Path) -> None:
    lora = LoraRecipe(rank=2, target_modules=("q_proj", "k_prj"))
    with pytest.raises(MarkbookError, match=r"'k_prj', but .*down_proj.*did you mean 'k_proj'"):
        load(tiny_llama, lora=lora)


def test_tied_output_layer_takes_no_adapter(tiny_llama: Path, tiny_qwen3: Path) -> None:
    lora = LoraRecipe(rank=2, target_modules=("lm_head",))
    load(tiny_llama, lora=lora)
    with pytest.raises(MarkbookError, match="shares"):
        load(tiny_qwen3, lora=lora)


def test_experts_take_no_adapter(tmp_path: Path) -> None:
    """PEFT would put some on, under names that a plain model does not have."""
    config = Qwen3MoeConfig(
        vocab_size=320,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(MarkbookError, match="reaches the experts"):
        add_adapters(model, LORA, seed=0)
    model = AutoModelForCausalLM.from_config(config)
    add_adapters(model, LoraRecipe(rank=2, target_modules=("q_proj", "o_proj")), seed=0)
    assert sum(p.requires_grad for p in model.parameters()) == 8


def test_missing_peft_is_told(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MarkbookError, match=r"rank = 4 needs PEFT.*markbook\[peft\]"):
        load(tiny_llama, lora=LORA)


# Faults of the source


def check_refused(path: str | Path, message: str) -> None:
    with pytest.raises(MarkbookError, match=message) as caught:
        load_model(ModelRecipe(path=str(path)), CPU)
    assert "\n" not in str(caught.value)


def test_empty_path() -> None:
    check_refused("", "give --model")


def test_misspelt_directory(copy: Path) -> None:
    check_refused(copy.parent / "modle", "no such file or directory; did you mean 'model'")
    check_refused(copy.parent / "other", "holds model")
    check_refused(copy.parent / "model.gguf", "no such file")


def test_misspelt_directory_that_looks_like_a_hub_id(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent.parent)
    check_refused(f"{copy.parent.name}/modell", "did you mean 'model'")


def test_hub_id_that_is_not_given(monkeypatch: pytest.MonkeyPatch, copy: Path) -> None:
    monkeypatch.chdir(copy.parent)
    _snapshot.cache_clear()
    check_refused("nobody/nothing", "hub did not give it.*check the name, the connection")
    check_refused("modell", "did you mean 'model'.*hub")


def test_files_that_are_no_model(copy: Path) -> None:
    check_refused(copy / "config.json", "is a file")
    (copy / "x.gguf").write_bytes(b"GGUF" + b"\0" * 40)
    check_refused(copy / "x.gguf", "can't be loaded")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "configuration can't be loaded"),
        (lambda d: edit(d, "config.json", hidden_size="wide"), "hidden_size"),
        (lambda d: edit(d, "config.json", model_type="lama"), "lama"),
        (lambda d: (d / "model.safetensors").unlink(), "no weights"),
        (lambda d: os.truncate(d / "model.safetensors", 9000), "model.safetensors is damaged"),
        (lambda d: (d / "model.safetensors").write_text("version 1"), "model.safetensors is dam"),
        (lambda d: edit(d, "config.json", num_hidden_layers=3), r"missing: model.layers.2.*4 more"),
        (lambda d: edit(d, "config.json", num_hidden_layers=1), r"no place for.*layers.1.*4 more"),
        (lambda d: edit(d, "config.json", intermediate_size=64), r"don't fit.*48.*instead of.*64"),
        (lambda d: edit(d, "config.json", vocab_size=99), r"don't fit"),
        (lambda d: edit(d, "adapter_config.json"), "adapter, not a model"),
        (lambda d: edit(d, "config.json", quantization_config={"quant_method": "fp8"}), "quantis"),
    ],
)
def test_damaged_directory(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    check_refused(copy, message)


def test_directory_above_or_beside(copy: Path) -> None:
    check_refused(copy.parent, f"there is one in {copy}")
    shutil.rmtree(copy)
    copy.mkdir()
    check_refused(copy, "no config.json")
    (copy / "a.gguf").touch()
    check_refused(copy, f"give the file itself, {copy / 'a.gguf'}")


@pytest.mark.parametrize(
    ("config", "message"), [(T5Config(), "t5 is an encoder-dec"), (BertConfig(), "bert is an enc")]
)
def test_what_is_no_decoder_is_refused(copy: Path, config: Any, message: str) -> None:
    config.save_pretrained(copy)
    check_refused(copy, message)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda d: (d / "tokenizer.json").write_text("{"), "tokenizer can't be loaded"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer can't be loaded"),
        (lambda d: edit(d, "tokenizer.json", model={"type": "none"}), "tokenizer can't be loaded"),
    ],
)
def test_damaged_tokenizer(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(MarkbookError, match=message):
        load_tokenizer(ModelRecipe(path=str(copy)))


# Model and tokenizer together


def test_tokenizer_larger_than_the_embedding(tiny_llama: Path, copy: Path) -> None:
    model = load(tiny_llama)
    tokenizer = load_tokenizer(ModelRecipe(path=str(copy)))
    check_vocabulary(model, tokenizer)
    rows: Any = model.get_input_embeddings().num_embeddings
    tokenizer.add_tokens(["<think>"] * (rows + 1 - len(tokenizer)))
    with pytest.raises(MarkbookError, match=f"ids up to {rows}, but the model has {rows} emb"):
        check_vocabulary(model, tokenizer)


def ends(directory: Path) -> frozenset[int]:
    return end_token_ids(load(directory), load_tokenizer(ModelRecipe(path=str(directory))))


def test_end_tokens_come_from_every_file(copy: Path) -> None:
    assert ends(copy) == {1}
    edit(copy, "generation_config.json", eos_token_id=[1, 0])
    assert ends(copy) == {0, 1}
    edit(copy, "generation_config.json", eos_token_id=...)
    edit(copy, "config.json", eos_token_id=0)
    assert ends(copy) == {0, 1}


def test_several_end_tokens_are_saved(copy: Path, tmp_path: Path) -> None:
    edit(copy, "generation_config.json", eos_token_id=[1, 0])
    save_model(load(copy), load_tokenizer(ModelRecipe(path=str(copy))), tmp_path / "saved")
    assert plain(tmp_path / "saved").generation_config.eos_token_id == [0, 1]


def test_a_word_as_end_token_is_refused(copy: Path) -> None:
    """Llama's config class has 2 as its default, which here is an ordinary token."""
    edit(copy, "config.json", eos_token_id=...)
    edit(copy, "generation_config.json", eos_token_id=...)
    with pytest.raises(MarkbookError, match=r"eos_token_id 2 of .*config.json is '!'"):
        ends(copy)


def test_no_end_token_is_refused(copy: Path) -> None:
    for file in ("config.json", "generation_config.json"):
        edit(copy, file, eos_token_id=None)
    edit(copy, "tokenizer_config.json", eos_token=...)
    with pytest.raises(MarkbookError, match="no end token"):
        ends(copy)


def test_a_published_generation_config_that_transformers_would_not_save(
    copy: Path, tmp_path: Path
) -> None:
    """A temperature without sampling loads with a notice; changed, it raises when saved."""
    edit(copy, "generation_config.json", temperature=0.6, top_p=0.9, eos_token_id=[0, 1])
    model = load(copy)
    save_model(model, load_tokenizer(ModelRecipe(path=str(copy))), tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert (saved["do_sample"], saved["temperature"], saved["top_p"]) == (True, 0.6, 0.9)


def test_context_length(tiny_llama: Path) -> None:
    model = load(tiny_llama)
    assert context_length(model) == context_length(model.config) == 256
    assert context_length(PreTrainedConfig()) is None


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(MarkbookError, match=r"model.device = 'cuda', but"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cpu") == torch.device("cpu")


# GGUF


def write_gguf(
    path: Path, directory: Path, tokenizer: PreTrainedTokenizerBase, **changes: Any
) -> None:
    """Write a Llama directory as one GGUF file, its weights in float32.

    The format keeps the two halves of a rotary pair side by side in queries and keys.
    """
    model = plain(directory)
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if i < 2 else 1 for _, i in vocabulary])  # 3: special, 1: plain
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    if "rope_scaling" in changes:
        writer.add_rope_scaling_type(changes["rope_scaling"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy().astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            pairs = weight.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{names.get_name(name.removesuffix('.weight'))}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tiny_gguf(tmp_path: Path, tiny_llama: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama, tiny_tokenizer)
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gguf_is_the_model_it_was_made_of(
    tiny_gguf: Path, tiny_llama: Path, tmp_path: Path, dtype: str
) -> None:
    model = load(tiny_gguf, dtype=dtype)
    expected = logits(load(tiny_llama, dtype=dtype))
    assert torch.equal(logits(model), expected)
    assert all(p.requires_grad for p in model.parameters())
    tokenizer = load_tokenizer(ModelRecipe(path=str(tiny_gguf)))
    original = load_tokenizer(ModelRecipe(path=str(tiny_llama)))
    text = "A conversation: <think>\n 12 + 7 = 19 é\n</think><end>"
    assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
    assert tokenizer.get_vocab() == original.get_vocab()
    check_vocabulary(model, tokenizer)
    assert end_token_ids(model, tokenizer) == {1}
    # And back: as a directory that nobody can tell was a GGUF file.
    save_model(model, tokenizer, tmp_path / "saved")
    assert torch.equal(logits(plain(tmp_path / "saved")), expected)
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_gguf_takes_adapters(tiny_gguf: Path) -> None:
    model = load(tiny_gguf, lora=LORA)
    model(torch.tensor([[5, 6]])).logits.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_truncated_gguf_is_refused(tiny_gguf: Path) -> None:
    os.truncate(tiny_gguf, tiny_gguf.stat().st_size // 2)
    check_refused(tiny_gguf, "can't be loaded")


def test_gguf_whose_positions_would_be_lost_is_refused(
    tmp_path: Path, tiny_llama: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "scaled.gguf"
    write_gguf(path, tiny_llama, tiny_tokenizer, rope_scaling=gguf.RopeScalingType.YARN)
    check_refused(path, r"scales positions \(llama.rope.scaling.type\)")
