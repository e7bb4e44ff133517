"""What a recipe will do, worked out without loading weights: `markbook train RECIPE --dry-run`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from transformers import AutoConfig, PreTrainedConfig

from markbook.errors import MarkbookError
from markbook.memory import Memory, available_bytes, count_parameters, estimate, shape_of
from markbook.models import context_length, load_config, load_tokenizer, resolve_device
from markbook.recipe import Recipe
from markbook.records import Problem
from markbook.schedule import learning_rate_at, max_tokens_at
from markbook.source import NotCachedError, first_line
from markbook.tasks import Task, load_task
from markbook.template import load_template
from markbook.verify import MarkingRules

ASSUMED_PROMPT_TOKENS = 512
"""How long prompts are taken to be where there is no tokenizer, or no data, to measure them."""


@dataclass(frozen=True)
class Plan:
    """The numbers of a run. None stands for what can't be known yet."""

    num_steps: int
    updates_per_step: int
    num_updates: int
    problems_per_step: int
    group_size: int
    completions_per_step: int
    completions_per_update: int
    lengths: tuple[tuple[int, int, int], ...]
    """(step, its first update, longest completion) at the start and wherever it changes."""
    problems_drawn: int
    """Problems sampled from in all, without resampling."""
    num_problems: int | None
    """Problems of the training split."""
    tokens_at_most: int
    """Tokens sampled in training if every completion runs to its limit, resampling included."""
    prompt_tokens: int
    """The longest prompt, or an assumption."""
    prompt_known: bool
    context_tokens: int | None
    micro_batch_rows: int
    """Completions of the greatest length that go through the model at once."""
    micro_batches: int
    """How many micro-batches an update has at most."""
    learning_rates: tuple[float, float, float]
    """Of the first update, at its highest, and of the last update."""
    decay: str
    warmup_updates: int
    reference_refreshes: int
    reference_every: int
    has_reference: bool
    evaluations: int
    evaluation_problems: int
    """How many problems each evaluation takes; -1 for all of the split."""
    evaluation_samples: int
    dtype: str
    parameters: int | None
    trained_parameters: int | None
    memory: Memory | None
    no_memory_because: str
    """Why there is no estimate, in words; empty where there is one."""
    available: int | None
    """Bytes that are free on the recipe's device; None where it isn't here."""
    device: str

    @property
    def epochs(self) -> float | None:
        """How often the training split is gone through."""
        return None if self.num_problems is None else self.problems_drawn / self.num_problems


def length_changes(recipe: Recipe) -> tuple[tuple[int, int, int], ...]:
    """Return (step, its first update, longest completion) where the longest completion changes.

    A step samples before its updates, so it takes the limit that holds at its first update: with
    16 updates a step, a limit from update 8,200 on is first used by step 513 (update 8,208).
    """
    changes: list[tuple[int, int, int]] = []
    for step in range(recipe.train.num_steps):
        update = step * recipe.updates_per_step
        tokens = max_tokens_at(update, recipe.rollout.max_tokens)
        if not changes or changes[-1][2] != tokens:
            changes.append((step, update, tokens))
    return tuple(changes)


def tokens_at_most(recipe: Recipe) -> int:
    """Return the tokens that training samples if every completion runs to its limit."""
    rollout = recipe.rollout
    draws = rollout.max_draws if rollout.uninformative == "resample" else 1
    completions = rollout.problems_per_step * rollout.group_size * draws
    return completions * sum(
        max_tokens_at(step * recipe.updates_per_step, rollout.max_tokens)
        for step in range(recipe.train.num_steps)
    )


def rows_per_micro_batch(micro_batch_tokens: int, length: int, completions: int) -> int:
    """Return how many completions of a length fit a micro-batch: at least one, at most all.

    >>> [rows_per_micro_batch(8192, length, 100) for length in (1000, 8192, 9000, 10)]
    [8, 1, 1, 100]
    """
    return max(1, min(completions, micro_batch_tokens // length))


def num_evaluations(num_steps: int, every: int) -> int:
    """Return how many evaluations there are: before the first step, after the last, and between.

    >>> [num_evaluations(100, every) for every in (0, 25, 30, 100)]
    [2, 5, 5, 2]
    """
    return 2 + (len(range(every, num_steps, every)) if every else 0)


def plan(recipe: Recipe) -> Plan:
    """Work out what a recipe will do. Reads data and configuration; loads no weights.

    Raises `MarkbookError` where the run itself would for its data, template, tokenizer or model
    configuration, as far as they are on this machine.
    """
    config, why_not = _config(recipe)
    task = _task(recipe)
    problems = task.problems("train") if task is not None else ()
    context = context_length(config) if config is not None else None
    longest = max(tokens for _, tokens in recipe.rollout.max_tokens)
    measured = _longest_prompt(recipe, task, problems) if task is not None else None
    room = ASSUMED_PROMPT_TOKENS if context is None else max(1, context - longest)
    prompt_tokens = measured or min(ASSUMED_PROMPT_TOKENS, room)
    rollout, optimizer, objective = recipe.rollout, recipe.optimizer, recipe.objective
    completions = rollout.problems_per_step * rollout.group_size
    per_update = completions // objective.num_minibatches
    rows = rows_per_micro_batch(optimizer.micro_batch_tokens, prompt_tokens + longest, per_update)
    updates = recipe.num_updates
    evaluation = recipe.evaluation
    parameters = count_parameters(config, recipe.model.lora) if config is not None else None
    refresh = objective.reference_refresh_updates if objective.kl_coefficient else 0
    return Plan(
        num_steps=recipe.train.num_steps,
        updates_per_step=recipe.updates_per_step,
        num_updates=updates,
        problems_per_step=rollout.problems_per_step,
        group_size=rollout.group_size,
        completions_per_step=completions,
        completions_per_update=per_update,
        lengths=length_changes(recipe),
        problems_drawn=recipe.train.num_steps * rollout.problems_per_step,
        num_problems=len(problems) if task is not None else None,
        tokens_at_most=tokens_at_most(recipe),
        prompt_tokens=prompt_tokens,
        prompt_known=measured is not None,
        context_tokens=context,
        micro_batch_rows=rows,
        micro_batches=-(-per_update // rows),
        learning_rates=_learning_rates(recipe),
        decay=optimizer.decay,
        warmup_updates=optimizer.warmup_updates,
        reference_refreshes=updates // refresh if refresh else 0,
        reference_every=refresh,
        has_reference=objective.kl_coefficient > 0,
        evaluations=num_evaluations(recipe.train.num_steps, evaluation.every),
        evaluation_problems=evaluation.num_problems,
        evaluation_samples=evaluation.samples,
        dtype=recipe.model.dtype,
        parameters=parameters[0] if parameters else None,
        trained_parameters=parameters[1] if parameters else None,
        memory=_memory(recipe, config, parameters, prompt_tokens, rows),
        no_memory_because=why_not,
        available=_available(recipe),
        device=recipe.model.device,
    )


def _learning_rates(recipe: Recipe) -> tuple[float, float, float]:
    """Return the rate of the first update, of the first after warm-up, and of the last."""
    optimizer, updates = recipe.optimizer, recipe.num_updates
    peak = min(max(0, optimizer.warmup_updates - 1), updates - 1)
    first, highest, last = (learning_rate_at(u, optimizer, updates) for u in (0, peak, updates - 1))
    return first, highest, last


def _memory(
    recipe: Recipe,
    config: PreTrainedConfig | None,
    parameters: tuple[int, int] | None,
    prompt_tokens: int,
    rows: int,
) -> Memory | None:
    """Return the memory of the run, where the model's configuration is known."""
    if config is None or parameters is None:
        return None
    rollout = recipe.rollout
    completions = rollout.problems_per_step * rollout.group_size
    return estimate(
        shape_of(config),
        *parameters,
        recipe.model.dtype,
        reference=recipe.objective.kl_coefficient > 0,
        sampled_rows=min(completions, rollout.max_batch_sequences),
        prompt_tokens=prompt_tokens,
        max_tokens=max(tokens for _, tokens in rollout.max_tokens),
        micro_batch_rows=rows,
    )


def _config(recipe: Recipe) -> tuple[PreTrainedConfig | None, str]:
    """Return the model's configuration, or None and why there is none."""
    model = recipe.model
    if model.path == "demo":
        return None, "the demo's base is built when the run starts; it takes well under 1 GiB"
    try:
        return load_config(model, download=False), ""
    except NotCachedError:
        if model.config:
            return _config_from_file(Path(model.config)), ""
        return None, (
            f"{model.path} is not on this machine; give model.config, a config.json to estimate by"
        )


def _config_from_file(path: Path) -> PreTrainedConfig:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        config: PreTrainedConfig = AutoConfig.for_model(**table)
    except Exception as error:  # whatever a file that is no model configuration brings about
        raise MarkbookError(
            f"model.config = {str(path)!r}: is no model configuration that transformers knows "
            f"({first_line(error)})."
        ) from error
    return config


def _task(recipe: Recipe) -> Task | None:
    """Return the recipe's task, its problems read and checked; None where no data is named."""
    if not recipe.data.task and not recipe.data.path:
        return None
    return load_task(recipe.data, MarkingRules(tags=recipe.marking.tags))


def _longest_prompt(recipe: Recipe, task: Task, problems: object) -> int | None:
    """Return the tokens of the longest prompt; None where there is no tokenizer to count them."""
    if recipe.model.path == "demo":
        return None
    try:
        tokenizer = load_tokenizer(recipe.model, download=False)
    except NotCachedError:
        return None
    template = load_template(recipe.prompt, tokenizer, tags=recipe.marking.tags)
    items: list[Problem] = list(problems)  # type: ignore[call-overload]
    return max(len(template.render(task.prompt(problem))[1]) for problem in items)


def _available(recipe: Recipe) -> int | None:
    try:
        return available_bytes(resolve_device(recipe.model.device))
    except MarkbookError:
        return None  # the plan of a GPU run, made on a machine without one


def print_plan(console: Console, plan: Plan) -> None:
    """Print a plan, one line a fact."""
    for title, facts in (("Plan", _run_facts(plan)), ("Memory", _memory_facts(plan))):
        console.print(title, style="bold", highlight=False)
        for name, text in facts:
            console.print(f"  {name:<20}{text}", highlight=False, markup=False, soft_wrap=True)


def _run_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    each = f" of {plan.updates_per_step} updates each" if plan.updates_per_step > 1 else ""
    yield "steps", f"{plan.num_steps:,}{each}: {plan.num_updates:,} updates"
    yield (
        "a step samples",
        f"{plan.problems_per_step:,} problems x {plan.group_size} completions = "
        f"{plan.completions_per_step:,} completions",
    )
    yield (
        "an update trains on",
        f"{plan.completions_per_update:,} completions, in at most {plan.micro_batches:,} "
        f"micro-batches of {plan.micro_batch_rows} or more",
    )
    if plan.epochs is None:
        yield "problems", f"{plan.problems_drawn:,} drawn; no data is named yet (--data, --task)"
    else:
        yield (
            "problems",
            f"{plan.problems_drawn:,} drawn from {plan.num_problems:,}: {plan.epochs:.2f} epochs",
        )
    _, _, first = plan.lengths[0]
    later = [f"{tokens:,} from step {step} (update {u:,})" for step, u, tokens in plan.lengths[1:]]
    yield "longest completion", ", ".join([f"{first:,} tokens", *later])
    how = "the longest" if plan.prompt_known else "assumed; they can't be measured here yet"
    yield "prompts", f"{plan.prompt_tokens:,} tokens ({how})"
    if plan.context_tokens is not None:
        needed = plan.prompt_tokens + max(tokens for _, _, tokens in plan.lengths)
        fits = "" if needed <= plan.context_tokens else f": TOO SHORT, {needed:,} are needed"
        yield "the model's context", f"{plan.context_tokens:,} tokens{fits}"
    yield "tokens sampled", f"at most {plan.tokens_at_most:,} in training"
    yield "learning rate", _rates(plan)
    yield "reference", _reference(plan)
    if plan.evaluation_problems:
        count = "all" if plan.evaluation_problems < 0 else f"{plan.evaluation_problems:,}"
        yield (
            "evaluation",
            f"{plan.evaluations} times, {count} problems x {plan.evaluation_samples} completions",
        )
    else:
        yield "evaluation", "off"


def _rates(plan: Plan) -> str:
    first, peak, last = plan.learning_rates
    if first == peak == last:
        return f"{first:g} throughout"
    parts = [f"{first:g} at first"]
    if plan.warmup_updates > 1:
        parts.append(f"{peak:g} from update {plan.warmup_updates - 1:,} on")
    if last != peak:
        parts.append(f"{last:g} at the last ({plan.decay})")
    return ", ".join(parts)


def _reference(plan: Plan) -> str:
    if not plan.has_reference:
        return "none (objective.kl_coefficient = 0)"
    if not plan.reference_every:
        return "the model as it begins, throughout"
    return (
        f"replaced by the policy every {plan.reference_every:,} updates, "
        f"{plan.reference_refreshes:,} times"
    )


def _memory_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    memory = plan.memory
    if memory is None:
        yield "not estimated", plan.no_memory_because
        return
    trained = (
        "all" if plan.parameters == plan.trained_parameters else f"{plan.trained_parameters:,}"
    )
    yield "parameters", f"{plan.parameters:,} in {plan.dtype}, {trained} of them trained"
    yield "weights", size(memory.weights)
    if memory.masters:
        yield "float32 copies", f"{size(memory.masters)} of trained weights, for the optimiser"
    yield "AdamW's moments", size(memory.moments)
    if memory.reference:
        yield "reference", size(memory.reference)
    yield "KV cache", f"{size(memory.kv_cache)} while sampling"
    yield "drawing", f"{size(memory.sampling_logits)} while sampling"
    yield "gradients", f"{size(memory.gradients)} while training"
    yield "activations", f"{size(memory.activations)} of a micro-batch"
    yield "logits", f"{size(memory.training_logits)} of a micro-batch"
    yield (
        "at most",
        f"{size(memory.peak)} ({size(memory.sampling)} sampling, {size(memory.training)} training)",
    )
    if plan.available is None:
        yield "this machine", f"has no {plan.device} device to compare with"
    else:
        fits = "it fits" if memory.peak <= plan.available else "IT DOES NOT FIT"
        yield "this machine", f"{size(plan.available)} free: {fits}"


def size(number: int) -> str:
    """Return bytes as a person reads them.

    >>> [size(n) for n in (0, 900, 3 * 2**20, 1536 * 2**30)]
    ['0 B', '900 B', '3.0 MiB', '1.5 TiB']
    """
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
