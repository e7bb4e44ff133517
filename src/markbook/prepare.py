"""A recipe -> everything a run needs, checked before any compute is spent."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from markbook.display import Display
from markbook.errors import MarkbookError
from markbook.models import (
    check_vocabulary,
    context_length,
    end_token_ids,
    load_model,
    load_tokenizer,
    resolve_device,
)
from markbook.policy import Policy
from markbook.recipe import Recipe, check_weights
from markbook.recipe_file import replace
from markbook.records import Problem
from markbook.rollout import Classroom
from markbook.sampling import SamplingSpec
from markbook.sampling.local import LocalSampler
from markbook.seeding import seed_of
from markbook.tasks import Task, load_task
from markbook.tasks.check import check_marks, check_task
from markbook.template import Template, check_round_trip, decode, load_template
from markbook.trackers import check_trackers
from markbook.verify import MarkingRules

CHECKED_THROUGH_TOKENIZER = 64
"""How many gold answers also go through the tokenizer and back in the start-up check."""


@dataclass(frozen=True)
class Prepared:
    """What the loop works with."""

    classroom: Classroom
    policy: Policy
    problems: Sequence[Problem]
    held_out: Sequence[Problem]
    """Problems of the evaluation split; empty where evaluation is off."""


def sampling_spec(recipe: Recipe) -> SamplingSpec:
    """Return the one sampling specification that sampler and scorer share."""
    rollout = recipe.rollout
    return SamplingSpec(rollout.temperature, rollout.top_p, rollout.top_k, rollout.min_p)


def set_threads(recipe: Recipe) -> None:
    """Fix the number of threads: sums over another number of threads round differently."""
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)


def cache_root() -> Path:
    """Return where built base models are kept: $MARKBOOK_CACHE, else the user's cache folder."""
    own = os.environ.get("MARKBOOK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "markbook"


def with_model_on_disk(recipe: Recipe, console: Console) -> Recipe:
    """Return the recipe with the embedded base's directory where it asks for `demo`.

    The base is built with the run's seed if it is not there yet.
    """
    if recipe.model.path != "demo":
        return recipe
    from markbook.demo.base import BaseRecipe, cached_base

    with Display(console, "building the base model", total=BaseRecipe().num_steps) as display:
        path = cached_base(
            cache_root(),
            recipe.seed,
            lambda done, _, loss: display.tick(done, f"loss {loss:.3f}"),
        )
    return replace(recipe, "model.path", str(path))


def prepare(recipe: Recipe, console: Console) -> Prepared:
    """Load and check model, task and template; prove that marks work.

    Raises `MarkbookError` for whatever the user can mend.
    """
    check_trackers(recipe.train.trackers)
    set_threads(recipe)
    recipe = with_model_on_disk(recipe, console)
    device = resolve_device(recipe.model.device)
    tokenizer = load_tokenizer(recipe.model)
    template = load_template(recipe.prompt, tokenizer, recipe.marking.tags)
    model = load_model(recipe.model, device, seed=seed_of(recipe.seed, "adapters"))
    check_vocabulary(model, tokenizer)
    context = context_length(model)
    longest = max(tokens for _, tokens in recipe.rollout.max_tokens)
    rules = MarkingRules(tags=recipe.marking.tags)
    task = load_task(recipe.data, rules, fits=_fits(template, context, longest))
    problems, held_out = _problems(task, recipe)
    check_weights(recipe, task.components)
    ends = end_token_ids(model, tokenizer)
    check_marking(task, problems, template, tokenizer, ends)
    spec = sampling_spec(recipe)
    sampler = LocalSampler(
        model,
        tokenizer,
        ends,
        context_tokens=context,
        max_batch_sequences=recipe.rollout.max_batch_sequences,
        stop=recipe.rollout.stop,
    )
    policy = Policy(model, recipe.optimizer, spec)
    classroom = Classroom(
        task, template, tokenizer, ends, sampler, spec, dict(recipe.reward.weights)
    )
    return Prepared(classroom, policy, problems, held_out)


def _fits(template: Template, context: int | None, longest: int) -> Callable[..., str | None]:
    """Return a function that says why a prompt is too long for the model, or None."""

    def reason(prompt: object) -> str | None:
        length = len(template.render(prompt)[1])  # type: ignore[arg-type]  # validated by the task
        if context is None or length + longest <= context:
            return None
        return (
            f"its prompt of {length} tokens and rollout.max_tokens = {longest} don't fit the "
            f"model's context of {context} tokens"
        )

    return reason


def _problems(task: Task, recipe: Recipe) -> tuple[Sequence[Problem], Sequence[Problem]]:
    problems = task.problems("train")
    if len(problems) < recipe.rollout.problems_per_step:
        raise MarkbookError(
            f"recipe: rollout.problems_per_step = {recipe.rollout.problems_per_step}, but the "
            f"training split has {len(problems)} problems; lower it or give more problems."
        )
    evaluation = recipe.evaluation
    if evaluation.num_problems == 0:
        return problems, []
    if evaluation.split not in task.splits():
        raise MarkbookError(
            f"recipe: evaluation.split = {evaluation.split!r}, but task {task.name} has "
            f"{', '.join(task.splits())}."
        )
    held_out = task.problems(evaluation.split)
    if not held_out:
        raise MarkbookError(
            f"recipe: evaluation.num_problems = {evaluation.num_problems}, but the split "
            f"{evaluation.split!r} has no problems; give data.test_path or data.test_share, or "
            "set evaluation.num_problems = 0."
        )
    from markbook.evaluate import choose

    return problems, choose(held_out, evaluation.num_problems, recipe.seed)


def check_marking(
    task: Task,
    problems: Sequence[Problem],
    template: Template,
    tokenizer: PreTrainedTokenizerBase,
    ends: frozenset[int],
) -> None:
    """Prove that a gold answer scores full marks and an empty one none, as the run will mark.

    First on the text alone, for every problem; then, for the first problems, on the text that
    comes back from the tokenizer, with the template's opening in front. Raises `MarkbookError`.
    """
    check_task(task, problems)
    opening = template.prefill
    for problem in problems[:CHECKED_THROUGH_TOKENIZER]:
        text = task.model_answer(problem)
        if not text.startswith(opening.strip()):
            raise MarkbookError(
                f"the prompt ends with {opening!r}, but a right answer of task {task.name} begins "
                f"with {text[:20]!r}; change the template, prompt.prefill or marking.tags."
            )
        rest = text[len(opening.strip()) :]
        check_round_trip(tokenizer, rest)
        ids = tokenizer(rest, add_special_tokens=False)["input_ids"]
        returned = decode(tokenizer, ids, ends)
        check_marks(task, problem, opening + returned, opening)
