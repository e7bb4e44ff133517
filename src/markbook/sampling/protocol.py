"""What a sampler is asked for and what it gives back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from markbook.records import FinishReason
from markbook.sampling.distribution import SamplingSpec


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how many completions of it are wanted."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    """One seed a completion. The token at position t is drawn with `uniforms(seed, t)`, so a
    completion does not depend on when or beside which others it is sampled."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One finished completion."""

    request_index: int
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each id under the distribution it was drawn from."""
    finish_reason: FinishReason


class Sampler(Protocol):
    """An engine that continues prompts."""

    def sample(self, requests: Sequence[Request], spec: SamplingSpec) -> Iterator[Sampled]:
        """Yield every completion asked for, each as soon as it is finished, in any order."""
        ...
