"""A recipe: every choice of a run, as frozen dataclasses. Nothing is decided anywhere else.

A recipe file is TOML with one table per class below; the command line overrides single values
(`--rollout.group-size 32`). This module holds the fields, their defaults and the checks of each
value; `recipe_file` reads and writes them.

Words: a *step* is one turn of the loop: a rollout is sampled, marked and trained on. An *update*
is one optimiser step; a step makes `objective.num_minibatches * objective.num_epochs` of them.
Schedules count updates, as papers do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

import tyro

from markbook.errors import MarkbookError, suggestion


@dataclass(frozen=True)
class LoraRecipe:
    """Low-rank adapters through PEFT (needs `markbook[peft]`)."""

    rank: int = 0
    """Rank of the adapters; 0 trains every weight instead."""
    alpha: float = 32.0
    """Adapters are scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names of the modules that get an adapter; `all-linear` takes every linear layer."""


@dataclass(frozen=True)
class ModelRecipe:
    """The model that is trained."""

    path: Annotated[str, tyro.conf.arg(aliases=("--model",))] = ""
    """A Hugging Face id, a local directory, or a local .gguf file; `demo` is the embedded base."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and arithmetic; the optimiser always keeps float32 weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; `auto` takes a GPU where there is one."""
    config: str = ""
    """A config.json that `--dry-run` estimates memory from where the weights are not at hand."""
    lora: LoraRecipe = field(default_factory=LoraRecipe)


@dataclass(frozen=True)
class DataRecipe:
    """Where problems come from: a data file, or a task."""

    task: Annotated[str, tyro.conf.arg(aliases=("--task",))] = ""
    """A built-in task (`chains`), or a Python file and class: `my_task.py:MyTask`."""
    path: Annotated[str, tyro.conf.arg(aliases=("--data",))] = ""
    """A .jsonl, .csv or .parquet file of problems and answers."""
    test_path: str = ""
    """A second file of held-out problems, for evaluation."""
    test_share: float = 0.0
    """Share of `path` that is held out instead, chosen by a hash of the problem's id."""
    problem_field: str = "problem"
    """The column that holds the problem: text, or a list of chat messages."""
    answer_field: str = "answer"
    """The column that holds the gold answer."""
    id_field: str = "id"
    """The column that names a problem; where a file has none, its line numbers do."""
    on_fault: Literal["refuse", "skip"] = "refuse"
    """What a row that can't be used does: refuse the run, or be left out and listed."""


@dataclass(frozen=True)
class PromptRecipe:
    """How a problem becomes the text that the model continues."""

    template: str = "r1-zero"
    """A shipped template (`r1-zero`, `chains`, `few-shot`), a .jinja file, or `chat`: the
    tokenizer's own chat template."""
    system: str = ""
    """A system message, for `chat`."""
    prefill: str = ""
    """Text put at the end of the prompt as if the model had begun with it, e.g. `<think>`."""


@dataclass(frozen=True)
class MarkingRecipe:
    """What a completion must look like."""

    tags: tuple[str, ...] = ("think", "answer")
    """Tags that must each occur once, in this order, and nothing else around them. With none,
    the answer is the last box of the text."""
    reflective_words: tuple[str, ...] = ()
    """Words counted in the metrics; empty takes the R1 paper's list."""


@dataclass(frozen=True)
class RolloutRecipe:
    """What is sampled at each step."""

    problems_per_step: int = 16
    group_size: int = 16
    """Completions per problem; advantages compare them with one another."""
    max_tokens: tuple[tuple[int, int], ...] = ((0, 256),)
    """Longest completion as pairs (from this update on, tokens)."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 takes all."""
    min_p: float = 0.0
    """Sample among tokens at least this fraction as likely as the likeliest; 0 takes all."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, besides the model's own end tokens."""
    max_batch_sequences: int = 256
    """How many completions are sampled side by side."""
    uninformative: Literal["keep", "drop", "resample"] = "keep"
    """Groups whose rewards are all equal teach nothing: keep them, drop them from the update, or
    sample other problems in their place (DAPO's dynamic sampling)."""
    max_draws: int = 4
    """With `resample`: how many times at most a step draws problems, the first included."""
    max_unscorable_share: float = 0.05
    """The run stops where more than this share of a step's completions could not be marked."""


@dataclass(frozen=True)
class RewardRecipe:
    """Rewards are weighted sums of a verdict's components."""

    weights: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"accuracy": 1.0, "format": 1.0})
    )


@dataclass(frozen=True)
class AdvantageRecipe:
    """How rewards of a group become advantages."""

    normalize: Literal["population", "sample", "none", "leave_one_out"] = "population"
    """`population` and `sample`: divide the distance from the group's mean by that standard
    deviation; `none`: don't divide; `leave_one_out`: distance from the mean of the others."""


@dataclass(frozen=True)
class ObjectiveRecipe:
    """The loss and how often a rollout is used."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    """The probability ratio counts within [1 - clip_low, 1 + clip_high]."""
    dual_clip: float = 0.0
    """For negative advantages, bound the ratio's weight by this (over 1); 0 leaves it off."""
    kl_coefficient: float = 0.001
    """Weight of the k3 estimate of KL(policy, reference) in the loss; 0 needs no reference."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    """How token losses are averaged: GRPO's mean of each completion's mean, DAPO's mean over all
    tokens, or Dr. GRPO's division by a constant length."""
    constant_tokens: int = 0
    """The constant of `constant`; 0 takes the current maximum length."""
    num_minibatches: int = 1
    """Into how many optimiser steps a rollout is divided."""
    num_epochs: int = 1
    """How often the whole rollout is gone through."""
    old_logprobs: Literal["sampler", "policy"] = "sampler"
    """Who computes the denominator of the ratio: the sampler as it draws, or the policy in a
    second forward pass before the first update."""
    reference_refresh_updates: int = 0
    """The reference is replaced by the policy every this many updates; 0 keeps the first."""


@dataclass(frozen=True)
class OptimizerRecipe:
    """AdamW, its schedule and the size of a forward pass."""

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_updates: int = 0
    """The rate climbs linearly over this many updates."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """What the rate does from then until the last update."""
    final_fraction: float = 0.0
    """Where `linear` and `cosine` end, as a fraction of the learning rate."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this Euclidean norm; 0 leaves it as it is."""
    micro_batch_tokens: int = 8192
    """How many tokens, padding included, go through the model at once in training."""


@dataclass(frozen=True)
class EvaluationRecipe:
    """Marks on held-out problems, before, during and after training."""

    split: str = "test"
    num_problems: int = 0
    """How many problems of the split are tried; 0 turns evaluation off, -1 takes all."""
    samples: int = 1
    """Completions per problem, sampled as in training."""
    every: int = 0
    """Evaluate every this many steps; 0 only before the first and after the last."""


@dataclass(frozen=True)
class TrainRecipe:
    """How long a run is and what it keeps."""

    num_steps: int = 100
    checkpoint_every: int = 10
    """A checkpoint every this many steps; a killed run goes on from the last one."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay on disk; 0 keeps all."""
    threads: int = 0
    """Threads for arithmetic on a CPU; 0 takes one per core."""
    trackers: tuple[str, ...] = ()
    """Also send metrics to: tensorboard, wandb, trackio, mlflow."""


@dataclass(frozen=True)
class Recipe:
    """Every choice of a run."""

    seed: int = 0
    """All randomness of the run follows from this number."""
    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    prompt: PromptRecipe = field(default_factory=PromptRecipe)
    marking: MarkingRecipe = field(default_factory=MarkingRecipe)
    rollout: RolloutRecipe = field(default_factory=RolloutRecipe)
    reward: RewardRecipe = field(default_factory=RewardRecipe)
    advantage: AdvantageRecipe = field(default_factory=AdvantageRecipe)
    objective: ObjectiveRecipe = field(default_factory=ObjectiveRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps that one step of the loop makes."""
        return self.objective.num_minibatches * self.objective.num_epochs

    @property
    def num_updates(self) -> int:
        """Optimiser steps of the whole run."""
        return self.train.num_steps * self.updates_per_step


RANGES: Mapping[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "model.lora.rank": (0, 4096),
    "model.lora.alpha": (1e-9, 1e6),
    "data.test_share": (0, 0.5),
    "rollout.problems_per_step": (1, 10**6),
    "rollout.group_size": (2, 10**5),
    "rollout.temperature": (1e-3, 100),
    "rollout.top_p": (1e-6, 1),
    "rollout.top_k": (0, 10**7),
    "rollout.min_p": (0, 1),
    "rollout.max_batch_sequences": (1, 10**6),
    "rollout.max_draws": (1, 1000),
    "rollout.max_unscorable_share": (0, 1),
    "objective.clip_low": (0, 1),
    "objective.clip_high": (0, 100),
    "objective.kl_coefficient": (0, 100),
    "objective.constant_tokens": (0, 10**8),
    "objective.num_minibatches": (1, 10**5),
    "objective.num_epochs": (1, 1000),
    "objective.reference_refresh_updates": (0, 10**9),
    "optimizer.learning_rate": (0, 10),
    "optimizer.beta1": (0, 0.999999),
    "optimizer.beta2": (0, 0.9999999),
    "optimizer.epsilon": (1e-30, 1),
    "optimizer.weight_decay": (0, 10),
    "optimizer.warmup_updates": (0, 10**9),
    "optimizer.final_fraction": (0, 1),
    "optimizer.max_grad_norm": (0, 1e9),
    "optimizer.micro_batch_tokens": (1, 10**9),
    "evaluation.num_problems": (-1, 10**9),
    "evaluation.samples": (1, 10**5),
    "evaluation.every": (0, 10**9),
    "train.num_steps": (1, 10**9),
    "train.checkpoint_every": (1, 10**9),
    "train.keep_checkpoints": (0, 10**9),
    "train.threads": (0, 4096),
}
"""The least and the greatest value of each number, both allowed."""


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return every value of a recipe (or of a table of it) under its dotted name."""
    values: dict[str, Any] = {}
    for part in fields(node):
        value = getattr(node, part.name)
        name = f"{prefix}{part.name}"
        values |= flatten(value, f"{name}.") if is_dataclass(value) else {name: value}
    return values


def check(recipe: Recipe, source: str = "recipe") -> None:
    """Raise a `MarkbookError` that names the field and the value of the first fault found."""
    values = flatten(recipe)
    for name, (low, high) in RANGES.items():
        if not low <= values[name] <= high:  # also catches NaN
            raise MarkbookError(
                f"{source}: {name} = {values[name]} must be between {low:g} and {high:g}."
            )
    for name, wrong, advice in _faults(recipe):
        if wrong:
            raise MarkbookError(f"{source}: {name} = {_shown(values[name])} {advice}.")


def _shown(value: Any) -> str:
    return str(dict(value)) if isinstance(value, Mapping) else repr(value)


def _faults(recipe: Recipe) -> list[tuple[str, bool, str]]:
    """List what no single range can say: (field, is it wrong, what it must be)."""
    rollout, objective, weights = recipe.rollout, recipe.objective, recipe.reward.weights
    starts = [start for start, _ in rollout.max_tokens]
    completions = rollout.problems_per_step * rollout.group_size
    return [
        (
            "rollout.max_tokens",
            starts[:1] != [0] or sorted(set(starts)) != starts,
            "must be pairs (from update, tokens) that begin at update 0 and rise",
        ),
        (
            "rollout.max_tokens",
            any(tokens < 1 for _, tokens in rollout.max_tokens),
            "must allow at least 1 token",
        ),
        ("rollout.stop", "" in rollout.stop, "holds an empty string, which would stop at once"),
        (
            "objective.dual_clip",
            objective.dual_clip != 0 and not objective.dual_clip > 1,
            "must be over 1, or 0 to leave it off",
        ),
        (
            "objective.num_minibatches",
            completions % objective.num_minibatches != 0,
            f"must divide the {completions} completions of a step "
            "(rollout.problems_per_step x rollout.group_size) evenly",
        ),
        (
            "reward.weights",
            not weights or any(not -1e6 < weight < 1e6 for weight in weights.values()),
            "must give each component a finite weight",
        ),
        (
            "reward.weights",
            bool(weights) and not any(weight != 0 for weight in weights.values()),
            "rewards nothing; give at least one component a weight that is not 0",
        ),
        (
            "marking.tags",
            len(set(recipe.marking.tags)) != len(recipe.marking.tags)
            or not all(tag.isidentifier() for tag in recipe.marking.tags),
            "must be different names without brackets, such as ('think', 'answer')",
        ),
        (
            "objective.constant_tokens",
            objective.constant_tokens != 0 and objective.aggregation != "constant",
            'is only used with objective.aggregation = "constant"; set that, or leave this 0',
        ),
        (
            "rollout.max_draws",
            rollout.max_draws != RolloutRecipe.max_draws and rollout.uninformative != "resample",
            'is only used with rollout.uninformative = "resample"; set that, or leave this out',
        ),
        (
            "prompt.system",
            bool(recipe.prompt.system) and recipe.prompt.template != "chat",
            'is only used with prompt.template = "chat"; set that, or leave this out',
        ),
    ]


def check_weights(recipe: Recipe, components: tuple[str, ...]) -> None:
    """Raise where a reward weight names a component that the task's verdicts don't have."""
    for name in recipe.reward.weights:
        if name not in components:
            raise MarkbookError(
                f"recipe: reward.weights names {name!r}, but the task marks "
                f"{', '.join(components)}{suggestion(name, components)}; list the weights of those "
                "alone under [reward.weights] in a recipe file."
            )
