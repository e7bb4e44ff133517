"""Model -> token log-probs; log-probs and advantages -> one optimiser step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel

from markbook.batch import MicroBatch, Sample, pack
from markbook.errors import RunStopped
from markbook.objective import LossReport, loss_report, policy_loss
from markbook.recipe import ObjectiveRecipe, OptimizerRecipe
from markbook.sampling.distribution import SamplingSpec, entropy, log_distribution

TokenValues = Float[Tensor, "rows tokens"]


class NonFinite(RunStopped):
    """A loss or a gradient that is not a finite number; holds what is needed to look at why."""

    def __init__(self, metric: str, value: float, batches: Sequence[MicroBatch]) -> None:
        super().__init__(f"{metric} = {value} is not finite")
        self.metric = metric
        self.batches = list(batches)


@dataclass
class UpdateReport:
    """What the updates of one step did, token sums and extremes; `metrics` makes shares of it."""

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    losses: list[LossReport] = field(default_factory=list)
    differences: list[Tensor] = field(default_factory=list)
    """|sampler - policy| log-prob per token, of the tokens scored by the weights that sampled."""


def _gaps(logprobs: TokenValues, batch: MicroBatch) -> Float[Tensor, " tokens"]:
    gaps = (logprobs - batch.old_logprobs)[batch.completion_mask]
    return gaps.abs().double().cpu()


class Policy:
    """A model with its optimiser and, for the KL term, its reference.

    The reference is a copy of the trained tensors alone: the model's own code runs with them in
    place (`torch.func.functional_call`), so full training and LoRA need one mechanism.
    """

    def __init__(
        self, model: PreTrainedModel, optimizer: OptimizerRecipe, spec: SamplingSpec
    ) -> None:
        self.model = model
        self.spec = spec
        self.updates = 0
        """Optimiser steps made so far: the policy's version."""
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        # Steps of 1e-6 vanish in bfloat16's 8 bits, so the optimiser moves float32 copies.
        self.masters = {
            n: p if p.dtype == torch.float32 else p.detach().float()
            for n, p in self.trained.items()
        }
        self.optimizer = torch.optim.AdamW(
            list(self.masters.values()),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        self.max_grad_norm = optimizer.max_grad_norm
        self.reference: dict[str, Tensor] | None = None

    def refresh_reference(self) -> None:
        """Make the present policy the reference."""
        self.reference = {n: p.detach().clone() for n, p in self.trained.items()}

    def score(
        self, batch: MicroBatch, parameters: Mapping[str, Tensor] | None = None
    ) -> tuple[TokenValues, TokenValues]:
        """Return each target's log-prob, and the entropy of the distribution it came from.

        `parameters` runs the model with other trained tensors than its own.
        """
        arguments: dict[str, Any] = {
            "input_ids": batch.input_ids,
            "logits_to_keep": batch.num_logits,
            "use_cache": False,
        }
        if parameters is None:
            output = self.model(**arguments)
        else:
            output = functional_call(self.model, dict(parameters), (), arguments)
        logprobs = log_distribution(output.logits[:, :-1], self.spec, always=batch.targets)
        chosen = logprobs.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropies = entropy(logprobs)
        return chosen, entropies

    @torch.no_grad()
    def rescore(
        self, samples: Sequence[Sample], micro_batch_tokens: int, report: UpdateReport
    ) -> list[Sample]:
        """Return the samples with the policy's own log-probs as the old ones.

        Appends the distance to the log-probs they had to `report.differences`.
        """
        rescored = list(samples)
        for batch in pack(samples, micro_batch_tokens, "token_mean"):
            logprobs = self.score(batch.to(self.model.device))[0].cpu()
            report.differences.append(_gaps(logprobs, batch))
            for row, index in enumerate(batch.samples):
                own = tuple(logprobs[row][batch.completion_mask[row]].tolist())
                rescored[index] = replace(rescored[index], old_logprobs=own)
        return rescored

    def update(
        self,
        batches: Sequence[MicroBatch],
        objective: ObjectiveRecipe,
        learning_rate: float,
        report: UpdateReport,
        *,
        compare: bool = False,
    ) -> None:
        """Make one optimiser step over micro-batches whose weights belong to that step.

        `compare` measures how far the old log-probs are from the policy's: the difference between
        sampler and policy, where the weights are still those that sampled. Appends to `report`.

        Raises `NonFinite`, with the weights untouched, where the loss or gradient is not finite.
        """
        self.model.zero_grad(set_to_none=True)
        total_loss = 0.0
        for micro_batch in batches:
            batch = micro_batch.to(self.model.device)
            loss, losses, logprobs = self._loss(batch, objective)
            total_loss += float(loss.detach())
            if not math.isfinite(total_loss):
                raise NonFinite("loss", total_loss, [micro_batch])
            loss.backward()
            report.losses.append(losses)
            if compare:
                report.differences.append(_gaps(logprobs.detach(), batch))
        report.loss.append(total_loss)
        report.grad_norm.append(self._step(learning_rate, batches))
        report.learning_rate.append(learning_rate)

    def _loss(
        self, batch: MicroBatch, objective: ObjectiveRecipe
    ) -> tuple[Float[Tensor, ""], LossReport, TokenValues]:
        reference = None
        if objective.kl_coefficient:
            if self.reference is None:
                raise ValueError("a KL coefficient needs a reference; call refresh_reference()")
            with torch.no_grad():
                reference, _ = self.score(batch, self.reference)
        logprobs, entropies = self.score(batch)
        bounds = {
            "clip_low": objective.clip_low,
            "clip_high": objective.clip_high,
            "dual_clip": objective.dual_clip,
        }
        mask = batch.completion_mask
        loss = policy_loss(
            logprobs,
            batch.old_logprobs,
            reference,
            batch.advantages,
            batch.weights,
            mask,
            kl_coefficient=objective.kl_coefficient,
            **bounds,
        )
        losses = loss_report(
            logprobs,
            batch.old_logprobs,
            reference,
            batch.advantages,
            entropies,
            mask,
            **bounds,
        )
        return loss, losses, logprobs

    def _step(self, learning_rate: float, batches: Sequence[MicroBatch]) -> float:
        """Clip the gradient, move the weights; return the gradient's norm before clipping."""
        for name, parameter in self.trained.items():
            master = self.masters[name]
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        bound = self.max_grad_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.masters.values()), bound))
        if not math.isfinite(norm):
            raise NonFinite("grad_norm", norm, batches)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self.trained.items():
                if self.masters[name] is not parameter:
                    parameter.copy_(self.masters[name])
        self.model.zero_grad(set_to_none=True)
        self.updates += 1
        return norm

    def state(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield what a checkpoint must hold besides the optimiser: named sets of tensors."""
        yield "weights", {n: p.detach() for n, p in self.masters.items()}
        if self.reference is not None:
            yield "reference", self.reference

    @torch.no_grad()
    def restore(
        self,
        weights: Mapping[str, Tensor],
        reference: Mapping[str, Tensor] | None,
        optimizer: dict[str, Any],
        updates: int,
    ) -> None:
        """Put back what `state` gave, the optimiser's state and the number of updates."""
        for name, master in self.masters.items():
            master.copy_(weights[name])
            if master is not self.trained[name]:
                self.trained[name].copy_(master)
        if reference is not None:
            self.reference = {n: t.to(self.model.device) for n, t in reference.items()}
        self.optimizer.load_state_dict(optimizer)
        self.updates = updates
