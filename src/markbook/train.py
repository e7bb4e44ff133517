"""(1) The loop: collect -> advantage -> pack -> update -> journal."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from markbook import checkpoint, ledger
from markbook.batch import minibatches, pack, samples_of
from markbook.display import Display, number, percent, summary
from markbook.errors import RunStopped
from markbook.evaluate import evaluate, evaluation_metrics
from markbook.journal import Journal
from markbook.metrics import (
    REFLECTIVE_WORDS,
    Metrics,
    known,
    rollout_metrics,
    update_metrics,
)
from markbook.models import save_model
from markbook.policy import NonFinite, Policy, UpdateReport
from markbook.prepare import Prepared
from markbook.recipe import Recipe
from markbook.rollout import Clock, Rollout, collect
from markbook.schedule import learning_rate_at, max_tokens_at, refresh_due
from markbook.seeding import seed_of
from markbook.storage import clear, publish
from markbook.trackers import Tracker

GAP_LIMIT = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest mean distance between the sampler's and the policy's log-probs, in nats, that a run
starts with: rounding is under a tenth of it, another distribution far above."""


def train(
    recipe: Recipe,
    ready: Prepared,
    journal: Journal,
    console: Console,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Run a recipe in the journal's directory, from its last checkpoint if it has one.

    Killed at any moment and called again, it leaves the same weights, metrics and ledger as a run
    that was not. Raises `RunStopped` where to go on would train on something wrong.
    """
    policy = ready.policy
    position = restore(recipe, journal, policy)
    with Display(console, journal.run_dir.name, recipe.train.num_steps, position.step) as display:
        for step in range(position.step, recipe.train.num_steps):
            probe(recipe, ready, journal, display, step)
            clock = Clock()
            rollout = sample(recipe, ready, position, clock, display)
            report = learn(recipe, policy, rollout, clock, display, journal.run_dir)
            metrics = measure(recipe, ready, rollout, report)
            position = checkpoint.Position(step + 1, rollout.next_position)
            record(journal, ready, rollout, metrics, clock, trackers)
            if position.step % recipe.train.checkpoint_every == 0 or last(recipe, step):
                keep = recipe.train.keep_checkpoints
                checkpoint.save(journal.run_dir / "checkpoints", policy, position, keep)
            display.step(position.step, summary(metrics))
        probe(recipe, ready, journal, display, recipe.train.num_steps)
    finish(policy, ready, journal.run_dir)


def restore(recipe: Recipe, journal: Journal, policy: Policy) -> checkpoint.Position:
    """Take up the last whole checkpoint and cut everything later away; else begin at step 0."""
    folder = journal.run_dir / "checkpoints"
    checkpoint.clear_leftovers(folder)
    found = checkpoint.checkpoints(folder)
    if recipe.objective.kl_coefficient:
        policy.refresh_reference()
    position = checkpoint.load(found[-1], policy) if found else checkpoint.Position(0, 0)
    journal.rewind(position.step)
    ledger.drop_from(journal.run_dir / "ledger", position.step)
    return position


def sample(
    recipe: Recipe,
    ready: Prepared,
    position: checkpoint.Position,
    clock: Clock,
    display: Display,
) -> Rollout:
    """Sample and mark the groups of a step and compare each with its siblings."""
    display.part("sampling and marking")
    updates = ready.policy.updates
    return collect(
        ready.classroom,
        ready.problems,
        recipe.rollout,
        recipe.advantage.normalize,
        Rollout(
            step=position.step,
            policy_version=updates,
            max_tokens=max_tokens_at(updates, recipe.rollout.max_tokens),
            position=position.data_position,
            next_position=position.data_position,
        ),
        seed=recipe.seed,
        clock=clock,
        progress=display.advance,
    )


def learn(
    recipe: Recipe,
    policy: Policy,
    rollout: Rollout,
    clock: Clock,
    display: Display,
    run_dir: Path,
) -> UpdateReport:
    """Train on a rollout: epochs of mini-batches, one optimiser step each.

    Raises `RunStopped`, with the batch left in the run directory, where a loss or a gradient is
    not finite.
    """
    objective, optimizer = recipe.objective, recipe.optimizer
    begun = time.perf_counter()
    report = UpdateReport()
    samples = samples_of(rollout.groups, rollout.advantages)
    if samples and objective.old_logprobs == "policy":
        samples = policy.rescore(samples, optimizer.micro_batch_tokens, report)
    total = objective.num_epochs * objective.num_minibatches
    display.part("training")
    for epoch in range(objective.num_epochs):
        seed = seed_of(recipe.seed, "minibatches", rollout.step, epoch)
        for part in minibatches(samples, objective.num_minibatches, seed):
            batches = pack(
                part,
                optimizer.micro_batch_tokens,
                objective.aggregation,
                objective.constant_tokens or rollout.max_tokens,
            )
            rate = learning_rate_at(policy.updates, optimizer, recipe.num_updates)
            fresh = policy.updates == rollout.policy_version
            try:
                policy.update(
                    batches, objective, rate, report, compare=fresh and not report.differences
                )
            except NonFinite as error:
                raise RunStopped(_keep_batch(error, rollout, run_dir)) from error
            every = objective.reference_refresh_updates
            if policy.reference and refresh_due(policy.updates - 1, policy.updates, every):
                policy.refresh_reference()
            display.advance(len(report.loss), total)
    clock.training_s += time.perf_counter() - begun
    clock.trained_tokens += sum(losses.num_tokens for losses in report.losses)
    return report


def _keep_batch(error: NonFinite, rollout: Rollout, run_dir: Path) -> str:
    """Write the batch that failed to the run directory; return the sentence that says so."""
    path = run_dir / f"failed-step-{rollout.step:06d}.pt"
    torch.save({"metric": error.metric, "batches": [vars(b) for b in error.batches]}, path)
    return (
        f"step {rollout.step}: {error}; the weights are as before this update and the batch is in "
        f"{path}; try a lower optimizer.learning_rate."
    )


def measure(recipe: Recipe, ready: Prepared, rollout: Rollout, report: UpdateReport) -> Metrics:
    """Return the metrics of a step.

    Raises `RunStopped` where, at the first step, sampler and policy don't compute the same
    distribution, so that the ratio would not begin at 1.
    """
    metrics: Metrics = {
        "step": rollout.step,
        "policy_version": rollout.policy_version,
        "epoch": rollout.position / len(ready.problems),
        "max_tokens": rollout.max_tokens,
        **rollout_metrics(rollout, words(recipe)),
        **update_metrics(report),
    }
    gap, limit = metrics["sampler_policy_gap_mean"], GAP_LIMIT[recipe.model.dtype]
    if rollout.step == 0 and gap is not None and gap > limit:
        raise RunStopped(
            f"the sampler's log-probs are {gap:.4f} nats from the policy's on average, over "
            f"{limit}: they don't compute the same distribution, so nothing can be learned from it."
        )
    return metrics


def words(recipe: Recipe) -> tuple[str, ...]:
    """Return the reflective words that the metrics count."""
    return recipe.marking.reflective_words or REFLECTIVE_WORDS


def last(recipe: Recipe, step: int) -> bool:
    """Say whether this is the run's last step."""
    return step + 1 == recipe.train.num_steps


def record(
    journal: Journal,
    ready: Prepared,
    rollout: Rollout,
    metrics: Metrics,
    clock: Clock,
    trackers: Sequence[Tracker],
) -> None:
    """Write a step down: every completion to the ledger, then the step's numbers."""
    rows = ledger.rows_of(
        rollout.groups,
        rollout.advantages,
        step=rollout.step,
        split="train",
        prompt_text=lambda p: ready.classroom.template.render(ready.classroom.task.prompt(p))[0],
    )
    ledger.write_shard(journal.run_dir / "ledger", rollout.step, rows)
    timings = clock.timings()
    journal.append("timings", {"step": rollout.step, **timings})
    journal.append("metrics", metrics)
    for tracker in trackers:
        tracker.log(rollout.step, known(metrics) | timings)


def probe(recipe: Recipe, ready: Prepared, journal: Journal, display: Display, step: int) -> None:
    """Mark the held-out problems if an evaluation is due before this step, and write it down."""
    every, end = recipe.evaluation.every, recipe.train.num_steps
    if not ready.held_out or not (step in (0, end) or (every and step % every == 0)):
        return
    display.part("evaluating")
    policy = ready.policy
    groups = evaluate(
        ready.classroom,
        ready.held_out,
        seed=recipe.seed,
        samples=recipe.evaluation.samples,
        max_tokens=max_tokens_at(policy.updates, recipe.rollout.max_tokens),
        policy_version=policy.updates,
        clock=Clock(),
        progress=display.advance,
    )
    metrics = evaluation_metrics(groups, words(recipe), recipe.seed)
    split = recipe.evaluation.split
    rows = ledger.rows_of(
        groups,
        [None] * len(groups),
        step=step,
        split=split,
        prompt_text=lambda p: ready.classroom.template.render(ready.classroom.task.prompt(p))[0],
    )
    ledger.write_shard(journal.run_dir / "ledger", step, rows, name="evaluation")
    journal.append("evaluations", {"step": step, "split": split, **metrics})
    display.say(
        f"held out ({split}) before step {step}: pass@1 {percent(metrics['pass_at_1'])} "
        f"({percent(metrics['pass_at_1_low'])} to {percent(metrics['pass_at_1_high'])}), "
        f"format {percent(metrics.get('format_share'))}, "
        f"tokens {number(metrics['completion_tokens_mean'], 1)}"
    )


def finish(policy: Policy, ready: Prepared, run_dir: Path) -> None:
    """Write the final model as a Hugging Face checkpoint, all or nothing."""
    final, temporary = run_dir / "final", run_dir / ".final.tmp"
    if final.exists():
        return
    clear(temporary)
    temporary.mkdir()
    save_model(policy.model, ready.classroom.tokenizer, temporary)
    publish(temporary, final)
