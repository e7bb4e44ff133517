"""Build the demo's base model: a small Llama, trained on the corpus by next-token prediction.

The result is an ordinary Hugging Face checkpoint with its tokenizer, and `base.json` beside it
that says how it was made. The number of training steps is fixed, so that a rebuild on the same
machine gives the same bits.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from markbook.demo.corpus import Document, documents, mixture, render_prompt
from markbook.demo.tokenizer import train_tokenizer
from markbook.models import save_model
from markbook.seeding import permutation, seed_of

Progress = Callable[[int, int, float], None]
"""Called after every training step with the steps done, the steps in all and the step's loss."""

_BUCKET = 32
_TOKENIZER_DOCUMENTS = 10_000


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """All numbers that determine a base model, besides its seed and the corpus's shares."""

    hidden_size: int = 64
    intermediate_size: int = 192
    num_layers: int = 3
    num_heads: int = 4
    max_positions: int = 512
    num_steps: int = 600
    batch_size: int = 64
    matrix_learning_rate: float = 0.02
    """Of Muon (arXiv 2502.16982), which moves the layers' matrices: the same loss in about half
    the steps that AdamW takes for all of them."""
    learning_rate: float = 3e-3
    """Of AdamW, which moves the embedding and the norms."""
    num_warmup_steps: int = 50
    initializer_range: float = 0.12
    rope_theta: float = 10000.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class _Example:
    """A document's ids, the end token last; loss is taken from `solution_start` on."""

    token_ids: tuple[int, ...]
    solution_start: int


def build_base(
    directory: Path,
    seed: int = 0,
    progress: Progress | None = None,
    recipe: BaseRecipe = BaseRecipe(),
) -> None:
    """Train a base model and save it in `directory`, which must not exist yet.

    The directory appears whole or not at all. The caller's random state is left as it was.
    Raises FileExistsError where the directory exists.
    """
    if directory.exists():
        raise FileExistsError(directory)
    started = time.monotonic()
    corpus = list(documents(recipe.num_steps * recipe.batch_size, seed))
    tokenizer = train_tokenizer(
        text
        for document in corpus[-_TOKENIZER_DOCUMENTS:]
        for text in (document.prompt, document.solution)
    )
    examples = _encode(tokenizer, corpus)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "base", "weights"))
        model = LlamaForCausalLM(_config(recipe, tokenizer))
    loss = _train(model, examples, recipe, seed, progress)
    record = {
        **_determinants(seed, recipe),
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "num_documents": len(corpus),
        "num_solution_tokens": sum(len(e.token_ids) - e.solution_start for e in examples),
        "final_loss": loss,
        "seconds": round(time.monotonic() - started, 1),
    }
    _save(directory, model, tokenizer, record)


def cached_base(cache_root: Path, seed: int = 0, progress: Progress | None = None) -> Path:
    """Return the directory of the base model with this seed, building it when it isn't there.

    Its name carries a hash of all that determines its bits: recipe, corpus, seed, versions,
    number of threads and kind of processor.
    """
    determinants = _determinants(seed, BaseRecipe())
    key = hashlib.blake2b(json.dumps(determinants, sort_keys=True).encode(), digest_size=8)
    directory = cache_root / f"demo-base-{seed}-{key.hexdigest()}"
    if not directory.exists():
        try:
            build_base(directory, seed, progress)
        except OSError:
            if not directory.exists():  # else another process finished the very same model first
                raise
    return directory


def _determinants(seed: int, recipe: BaseRecipe) -> dict[str, object]:
    """Return everything that the weights depend on, as JSON would hold it."""
    sample = hashlib.blake2b(digest_size=8)
    for document in documents(200, seed):
        sample.update(f"{document.prompt}\0{document.solution}\0".encode())
    return {
        "seed": seed,
        "recipe": dataclasses.asdict(recipe),
        "corpus": mixture(),
        "corpus_sample": sample.hexdigest(),
        "template": render_prompt("{{ problem }}"),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("torch", "transformers", "tokenizers")
        },
        "num_threads": torch.get_num_threads(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def _config(recipe: BaseRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        initializer_range=recipe.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _encode(tokenizer: PreTrainedTokenizerFast, corpus: Sequence[Document]) -> list[_Example]:
    """Encode prompt and solution apart, as sampling does, and join their ids."""
    end = int(tokenizer.eos_token_id)
    prompts = tokenizer([document.prompt for document in corpus])["input_ids"]
    solutions = tokenizer([document.solution for document in corpus])["input_ids"]
    return [
        _Example((*prompt, *solution, end), len(prompt))
        for prompt, solution in zip(prompts, solutions, strict=True)
    ]


def _batches(examples: Sequence[_Example], size: int, seed: int) -> Iterator[list[_Example]]:
    """Yield every example once, in batches of examples of like length, batches in random order."""
    span = _BUCKET * size
    for start in range(0, len(examples), span):
        bucket = sorted(examples[start : start + span], key=lambda e: len(e.token_ids))
        batches = [bucket[at : at + size] for at in range(0, len(bucket), size)]
        for index in permutation(seed_of(seed, "base", "order", start), len(batches)):
            yield batches[index]


def _train(
    model: LlamaForCausalLM,
    examples: Sequence[_Example],
    recipe: BaseRecipe,
    seed: int,
    progress: Progress | None,
) -> float:
    """Run one pass over the examples; return the mean loss of its last twentieth, in nats."""
    optimisers = _optimisers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, recipe))
        for optimiser in optimisers
    ]
    losses = []
    for step, batch in enumerate(_batches(examples, recipe.batch_size, seed), start=1):
        loss = _solution_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        model.zero_grad()
        losses.append(loss.item())
        if progress is not None:
            progress(step, recipe.num_steps, losses[-1])
    tail = losses[-max(1, len(losses) // 20) :]
    return sum(tail) / len(tail)


def _optimisers(model: LlamaForCausalLM, recipe: BaseRecipe) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, recipe: BaseRecipe) -> float:
    """Return the share of the learning rate: linear warm-up, then half a cosine to zero."""
    warm = (step + 1) / recipe.num_warmup_steps
    done = min(1.0, step / recipe.num_steps)
    return min(warm, 0.5 * (1.0 + math.cos(math.pi * done)))


def _solution_loss(model: LlamaForCausalLM, batch: Sequence[_Example]) -> Tensor:
    """Return the mean negative log-probability of the batch's solution tokens.

    Prompts are not learnt: their digits are random, and a small model would spend itself on
    them. Padding stands behind the text, where causal attention never looks.
    """
    longest = max(len(example.token_ids) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    counts = torch.zeros(len(batch), longest - 1, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        counts[row, example.solution_start - 1 : len(example.token_ids) - 1] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[counts])
    return functional.cross_entropy(logits, ids[:, 1:][counts])


def _save(
    directory: Path,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    record: dict[str, object],
) -> None:
    """Write everything beside the directory first and rename, so that it's never there in part."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=directory.parent, prefix=f".{directory.name}-", ignore_cleanup_errors=True
    ) as temporary:
        written = Path(temporary) / "model"
        save_model(model, tokenizer, written)
        (written / "base.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        written.rename(directory)
