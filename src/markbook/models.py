"""Models and tokenizers: found, loaded whole or not at all, and written for `transformers`."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from markbook.adapters import add_adapters, is_adapted, merged_weights
from markbook.errors import MarkbookError
from markbook.recipe import ModelRecipe
from markbook.source import LISTED, Source, find_source, first_line

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@contextmanager
def _quiet(*, unpacking: bool = False) -> Iterator[None]:
    """Keep progress bars and notices off stderr; what matters in them is checked instead.

    The reader of GGUF files has a bar of its own that no setting turns off: `unpacking` says
    that it is at work.
    """
    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        with redirect_stderr(StringIO()) if unpacking else nullcontext():
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _read(source: Source, what: str, loader: Callable[..., Any], **options: Any) -> Any:
    """Call a `from_pretrained` on a source; whatever a broken file makes it raise is told."""
    if source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
    try:
        with _quiet(unpacking=source.gguf_file is not None):
            return loader(str(source.directory), trust_remote_code=False, **options)
    except Exception as error:  # safetensors and tokenizers raise plain Exception for bad files
        where = _damaged_file(source)
        place = f" ({where} is damaged or incomplete)" if where else ""
        raise source.fault(f"its {what} can't be loaded{place}: {first_line(error)}") from error


def _damaged_file(source: Source) -> str:
    """Return the name of the first weight file whose header does not fit its size, or ''."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(source.directory.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError):
            return file.name
    return ""


def load_tokenizer(recipe: ModelRecipe, *, download: bool = True) -> PreTrainedTokenizerBase:
    """Load the model's tokenizer.

    Raises `MarkbookError` as `find_source` does, and where the source holds no tokenizer, or a
    broken one.
    """
    source = find_source(recipe.path, download=download)
    held = {p.name for p in source.directory.iterdir()}
    if source.gguf_file is None and not held & set(TOKENIZER_FILES):
        raise source.fault(
            "it holds no tokenizer (tokenizer.json or the like); save one beside the weights"
        )
    tokenizer: PreTrainedTokenizerBase = _read(source, "tokenizer", AutoTokenizer.from_pretrained)
    return tokenizer if source.gguf_file is None else _without_strays(tokenizer)


def _without_strays(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a GGUF file's tokenizer with the file's own vocabulary alone.

    The reader starts from GPT-2's tokenizer, whose `<|endoftext|>` it adds where a vocabulary has
    no such token; the model has no embedding for it.
    """
    backend = tokenizer.backend_tokenizer
    size = backend.get_vocab_size(with_added_tokens=False)
    state = json.loads(backend.to_str())
    kept = [token for token in state["added_tokens"] if token["id"] < size]
    if len(kept) == len(state["added_tokens"]):
        return tokenizer
    names = {token["content"] for token in kept} | set(backend.get_vocab(with_added_tokens=False))
    special = {k: v for k, v in tokenizer.special_tokens_map.items() if str(v) in names}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state | {"added_tokens": kept})),
        chat_template=tokenizer.chat_template,
        **special,
    )


def load_config(recipe: ModelRecipe, *, download: bool = True) -> PreTrainedConfig:
    """Load and check a model's configuration alone.

    Raises `MarkbookError` as `find_source` does, and for a directory without config.json, an
    adapter without its model, a model that is no decoder, and quantised weights.
    """
    source = find_source(recipe.path, download=download)
    if source.gguf_file is None:
        _check_directory(source)
    config: PreTrainedConfig = _read(source, "configuration", AutoConfig.from_pretrained)
    _check_config(source, config)
    if source.gguf_file is not None:
        _check_positions(source)
    return config


def _check_positions(source: Source) -> None:
    """Refuse a GGUF file whose positions are scaled as `transformers` would not know of.

    Its reader takes the base frequency alone; the factors of Llama 3.1, say, would be lost and
    the model slightly wrong everywhere.
    """
    from gguf import GGUFReader

    reader = GGUFReader(source.directory / str(source.gguf_file))
    factors = [t.name for t in reader.tensors if t.name.startswith(("rope_freqs", "rope_factors"))]
    kinds = [
        name
        for name, field in reader.fields.items()
        if name.endswith("rope.scaling.type") and field.contents() != "none"
    ]
    # This one kind of file has its scaling read.
    if factors or [name for name in kinds if not name.startswith("gpt-oss.")]:
        raise source.fault(
            f"it scales positions ({_listed(factors + kinds)}), which is lost when transformers "
            "reads a GGUF file; give the model's Hugging Face directory"
        )


def _check_directory(source: Source) -> None:
    directory = source.directory
    if (directory / "adapter_config.json").exists():
        raise source.fault(
            "it holds an adapter, not a model; merge it into its base model and give that"
        )
    if (directory / "config.json").exists():
        return
    ggufs = sorted(p.name for p in directory.glob("*.gguf"))
    models = sorted(p.parent.name for p in directory.glob("*/config.json"))
    if ggufs:
        advice = f"give the file itself, {directory / ggufs[0]}"
    elif models:
        advice = f"there is one in {directory / models[0]}"
    else:
        advice = "a model's directory holds config.json, weights and a tokenizer"
    raise source.fault(f"there is no config.json in it; {advice}")


def _check_config(source: Source, config: PreTrainedConfig) -> None:
    kind = config.model_type
    if config.is_encoder_decoder:
        raise source.fault(f"{kind} is an encoder-decoder; give a decoder-only language model")
    # Only encoders that can also be made to decode have this field.
    if getattr(config, "is_decoder", True) is False:
        raise source.fault(f"{kind} is an encoder; give a decoder-only language model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise source.fault(f"transformers has no causal language model for the type {kind}")
    if getattr(config, "quantization_config", None) is not None:
        raise source.fault("its weights are quantised, so they can't be trained; give full ones")


def load_model(recipe: ModelRecipe, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """Load a causal language model in the recipe's type, in evaluation mode.

    Gradients are on for what is trained: everything, or with `lora.rank` over 0 the adapters
    alone, whose first values follow from `seed`. A GGUF file's weights are unpacked.

    Raises `MarkbookError` as `load_config` does, and where weights are missing, damaged, of
    another shape or not part of the model: nothing is ever initialised in silence.
    """
    source = find_source(recipe.path)
    options: dict[str, Any] = {
        "config": load_config(recipe),
        "dtype": getattr(torch, recipe.dtype),
    }
    if source.gguf_file is not None:
        # Else the weights may stay in their blocks, which have no gradient and can't be saved.
        options["quantization_config"] = GgufConfig(dequantize=True)
    elif not any(file for pattern in WEIGHT_PATTERNS for file in source.directory.glob(pattern)):
        raise source.fault("there are no weights in it (*.safetensors or pytorch_model*.bin)")
    model, report = _read(
        source,
        "model",
        AutoModelForCausalLM.from_pretrained,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # then they are in the report, where they are refused
        **options,
    )
    _check_complete(source, model, report)
    if recipe.lora.rank:
        add_adapters(model, recipe.lora, seed)
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def _check_complete(source: Source, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    kind = type(model).__name__
    shapes = [
        f"{name} {tuple(held)} instead of {tuple(wanted)}"
        for name, held, wanted in report["mismatched_keys"]
    ]
    if shapes:
        raise source.fault(f"its weights don't fit its configuration: {_listed(shapes)}")
    if report["missing_keys"]:
        raise source.fault(f"weights of {kind} are missing: {_listed(report['missing_keys'])}")
    if report["unexpected_keys"]:
        raise source.fault(
            f"it holds weights that {kind} has no place for, which would be lost: "
            f"{_listed(report['unexpected_keys'])}"
        )
    if report["error_msgs"]:
        raise source.fault(f"its weights can't be read: {_listed(map(str, report['error_msgs']))}")


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `MarkbookError` where the tokenizer can give ids that the model has no embedding for.

    More embeddings than tokens are common (padding to a round number) and allowed.
    """
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]  # an int
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise MarkbookError(
            f"model.path = {model.name_or_path!r}: the tokenizer has ids up to {largest}, but the "
            f"model has {rows} embeddings; they don't belong together."
        )


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return every id that ends a text by the tokenizer, generation_config.json or config.json.

    Raises `MarkbookError` where there is none, and where a file names an ordinary token: a
    config.json that leaves `eos_token_id` out gets its class's default, which in another
    vocabulary may be any word.
    """
    named = {
        "tokenizer_config.json": tokenizer.eos_token_id,
        "generation_config.json": getattr(model.generation_config, "eos_token_id", None),
        "config.json": getattr(model.config.get_text_config(), "eos_token_id", None),
    }
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {i for i, t in added.items() if t.special}
    ends: set[int] = set()
    for file, value in named.items():
        ids = [value] if isinstance(value, int) else list(value or ())
        for token in ids:
            if token not in special:
                raise MarkbookError(
                    f"model.path = {model.name_or_path!r}: the eos_token_id {token} of {file} is "
                    f"{tokenizer.convert_ids_to_tokens(token)!r}, no special token of the "
                    "tokenizer; correct it there."
                )
        ends |= set(ids)
    if not ends:
        raise MarkbookError(
            f"model.path = {model.name_or_path!r}: no end token is known, so no completion could "
            "stop; set eos_token in its tokenizer_config.json."
        )
    return frozenset(ends)


def context_length(model: PreTrainedModel | PreTrainedConfig) -> int | None:
    """Return how many tokens the model has positions for; None where it sets no bound."""
    config = model if isinstance(model, PreTrainedConfig) else model.config
    value = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(value) if value else None


def resolve_device(name: str) -> torch.device:
    """Return the device of a recipe's `model.device`; `auto` takes a GPU where there is one.

    Raises `MarkbookError` where `cuda` is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise MarkbookError(
            "model.device = 'cuda', but torch sees no GPU here; use 'cpu' or 'auto', or install a "
            "CUDA build of torch."
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a checkpoint that plain `transformers` loads: weights, configurations, tokenizer.

    Adapters are merged into the weights; the type of the weights is kept; generation stops at
    the tokens that completions ended with in training.
    """
    own = model.generation_config
    try:
        model.generation_config = _generation_config(model, tokenizer)
        with _quiet():
            merged = merged_weights(model) if is_adapted(model) else None
            model.save_pretrained(directory, state_dict=merged)
            tokenizer.save_pretrained(directory)
    finally:
        model.generation_config = own


def _generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> GenerationConfig:
    """Return the model's generation config with the end tokens of training, fit to be saved."""
    config = copy.deepcopy(model.generation_config)
    ends = sorted(end_token_ids(model, tokenizer))
    own: dict[str, Any] = {
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    }
    if config is not None:
        config.update(**own)
        # Published files often set a temperature and leave sampling off. They load with a notice
        # but can't be saved again, and that is no reason to lose a trained model.
        for sampling in (config.do_sample, True):
            config.do_sample = sampling
            try:
                config.validate(strict=True)
            except ValueError:
                continue
            return config
    return GenerationConfig(bos_token_id=tokenizer.bos_token_id, **own)
