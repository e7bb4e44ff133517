"""Sampling: prompts -> sampled tokens with their log-probs, by whatever engine there is."""

from markbook.sampling.distribution import SamplingSpec
from markbook.sampling.protocol import Request, Sampled, Sampler

__all__ = ["Request", "Sampled", "Sampler", "SamplingSpec"]
