"""A sampler in this process, over transformers' own model code, on a CPU or a GPU.

Each prompt is run once for its whole group; finished sequences leave the batch. A completion's
draws depend on its seed and positions alone, so its text does not depend on its neighbours beyond
the rounding of the model's arithmetic; the same call on the same machine repeats bit for bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from markbook.errors import MarkbookError
from markbook.records import FinishReason
from markbook.sampling.distribution import SamplingSpec, draw, log_distribution
from markbook.sampling.protocol import Request, Sampled
from markbook.seeding import uniforms

COMPACT_BELOW = 0.75
"""Finished rows are cut out of the KV cache once the running ones are under this share of it: the
cut copies the cache, so it is not worth it for every single row."""


@dataclass
class _Row:
    """One completion under way."""

    request_index: int
    sample_index: int
    seed: int
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False
    """Yielded already; its place in the batch is idle until the next cut."""


class LocalSampler:
    """Samples from a Hugging Face causal language model that this process holds."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        end_token_ids: frozenset[int],
        *,
        context_tokens: int | None = None,
        max_batch_sequences: int = 256,
        stop: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.end_token_ids = end_token_ids
        self.context_tokens = context_tokens
        self.max_batch_sequences = max_batch_sequences
        self.stop = tuple(stop)

    def sample(self, requests: Sequence[Request], spec: SamplingSpec) -> Iterator[Sampled]:
        """Yield every completion as soon as it is finished.

        Raises `MarkbookError` for an empty prompt, a budget under one token, and a prompt and
        budget that together don't fit the model's context.
        """
        for request in requests:
            self._check(request)
        rows = [
            _Row(index, sample, seed, request.max_tokens)
            for index, request in enumerate(requests)
            for sample, seed in enumerate(request.seeds)
        ]
        for first in range(0, len(rows), self.max_batch_sequences):
            yield from self._run(rows[first : first + self.max_batch_sequences], requests, spec)

    def _check(self, request: Request) -> None:
        length = len(request.prompt_ids)
        if length == 0:
            raise MarkbookError("a prompt has no tokens; check the template and the tokenizer.")
        if request.max_tokens < 1:
            raise MarkbookError(f"rollout.max_tokens = {request.max_tokens} must be at least 1.")
        if self.context_tokens is not None and length + request.max_tokens > self.context_tokens:
            raise MarkbookError(
                f"a prompt of {length} tokens and rollout.max_tokens = {request.max_tokens} don't "
                f"fit the model's context of {self.context_tokens} tokens; lower max_tokens or "
                "shorten the problem."
            )

    @torch.no_grad()
    def _run(
        self, rows: list[_Row], requests: Sequence[Request], spec: SamplingSpec
    ) -> Iterator[Sampled]:
        """Sample one batch to its end."""
        logits, cache, mask = self._prefill(rows, requests)
        positions = mask.sum(dim=1)
        alive = list(range(len(rows)))  # the tensors' row r belongs to rows[alive[r]]
        while True:
            tokens = self._draw([rows[i] for i in alive], logits, spec)
            going = []
            for r, row in enumerate(rows[i] for i in alive):
                if row.done:
                    continue
                reason = self._finish_reason(row)
                if reason is None:
                    going.append(r)
                else:
                    row.done = True
                    yield _finished(row, reason)
            if not going:
                return
            if len(going) < COMPACT_BELOW * len(alive):
                keep = torch.tensor(going, device=mask.device)
                cache.batch_select_indices(keep)
                mask, positions, tokens = mask[keep], positions[keep], tokens[keep]
                alive = [alive[r] for r in going]
            mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=1)
            logits = self.model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=positions[:, None],
                cache=cache,
                use_cache=True,
            ).logits[:, -1]
            positions = positions + 1

    def _prefill(
        self, rows: list[_Row], requests: Sequence[Request]
    ) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        """Run each prompt of the batch once and give every row its copy of the cache."""
        indices = sorted({row.request_index for row in rows})
        prompts = [requests[index].prompt_ids for index in indices]
        width = max(map(len, prompts))
        device = self.model.device
        ids = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        cache = DynamicCache(config=self.model.config)
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        place = {index: row for row, index in enumerate(indices)}
        spread = torch.tensor([place[row.request_index] for row in rows], device=device)
        cache.batch_select_indices(spread)
        return logits[spread], cache, mask[spread]

    def _draw(self, rows: list[_Row], logits: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
        """Draw each row's next token and write it down; return the tokens."""
        seeds = np.array([row.seed for row in rows], dtype=np.uint64)
        positions = np.array([len(row.token_ids) for row in rows], dtype=np.uint64)
        chances = torch.from_numpy(uniforms(seeds, positions)).to(logits.device)
        tokens, logprobs = draw(log_distribution(logits, spec), chances)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if not row.done:
                row.token_ids.append(token)
                row.logprobs.append(logprob)
        return tokens

    def _finish_reason(self, row: _Row) -> FinishReason | None:
        if row.token_ids[-1] in self.end_token_ids or self._stops(row):
            return "stopped"
        return "truncated" if len(row.token_ids) >= row.max_tokens else None

    def _stops(self, row: _Row) -> bool:
        """Say whether the newest token completes a stop string."""
        if not self.stop:
            return False
        # A stop string of n characters ends within its last n tokens, each at least a byte.
        tail = row.token_ids[-max(len(s.encode()) for s in self.stop) :]
        text = str(self.tokenizer.decode(tail, skip_special_tokens=False))
        return any(stop in text for stop in self.stop)


def _finished(row: _Row, reason: FinishReason) -> Sampled:
    return Sampled(
        row.request_index, row.sample_index, tuple(row.token_ids), tuple(row.logprobs), reason
    )
