"""The sampler in this process: right log-probs, seeded draws, nothing lost, clear refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from markbook.errors import MarkbookError
from markbook.sampling import Request, Sampled, SamplingSpec
from markbook.sampling.distribution import log_distribution
from markbook.sampling.local import LocalSampler
from markbook.seeding import seed_of, uniforms

END = frozenset({1})


def load(path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path).eval()
    return model


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return load(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def llama(tiny_llama: Path) -> PreTrainedModel:
    return load(tiny_llama)


def requests(samples: int = 6, max_tokens: int = 24) -> list[Request]:
    return [
        Request(
            tuple(range(5, 5 + n)), tuple(seed_of("s", n, i) for i in range(samples)), max_tokens
        )
        for n in (3, 11, 1, 7)
    ]


def sample(model: PreTrainedModel, asked: list[Request], **options: object) -> list[Sampled]:
    spec = options.pop("spec", SamplingSpec())
    tokenizer = options.pop("tokenizer", None)
    sampler = LocalSampler(model, tokenizer, END, **options)  # type: ignore[arg-type]
    found = sampler.sample(asked, spec)  # type: ignore[arg-type]
    return sorted(found, key=lambda s: (s.request_index, s.sample_index))


SPECS = [
    SamplingSpec(),
    SamplingSpec(temperature=0.7),
    SamplingSpec(temperature=1.3, top_p=0.9, top_k=20, min_p=0.02),
]


@pytest.mark.parametrize("spec", SPECS)
def test_logprobs_and_draws_agree_with_a_plain_forward_in_float64(
    model: PreTrainedModel, spec: SamplingSpec
) -> None:
    asked = requests()
    double = load(Path(str(model.name_or_path))).double()
    for got in sample(model, asked, spec=spec):
        request = asked[got.request_index]
        ids = torch.tensor([*request.prompt_ids, *got.token_ids])
        with torch.no_grad():
            logits = double(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1]
        reference = log_distribution(logits, spec, always=torch.tensor(got.token_ids))
        chosen = reference.gather(-1, torch.tensor(got.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(
            torch.tensor(got.logprobs, dtype=torch.float64), chosen, atol=1e-4, rtol=0
        )
        # Each token is where its own draw falls in the distribution, bounds within rounding.
        seed = request.seeds[got.sample_index]
        for position, token in enumerate(got.token_ids):
            at = np.array([position], dtype=np.uint64)
            draw = float(uniforms(np.uint64(seed), at)[0])
            cumulative = reference[position].exp().cumsum(0)
            low = cumulative[token] - reference[position, token].exp()
            assert low - 1e-4 <= draw <= cumulative[token] + 1e-4


def test_everything_asked_for_comes_once(llama: PreTrainedModel) -> None:
    got = sample(llama, requests())
    assert [(s.request_index, s.sample_index) for s in got] == [
        (r, i) for r in range(4) for i in range(6)
    ]
    for s in got:
        assert len(s.token_ids) == len(s.logprobs) <= 24
        ended = s.token_ids[-1] in END
        assert s.finish_reason == ("stopped" if ended else "truncated")
        assert ended or len(s.token_ids) == 24
        assert not END & set(s.token_ids[:-1])
    assert {s.finish_reason for s in got} == {"stopped", "truncated"}


def test_the_same_call_repeats_bit_for_bit(llama: PreTrainedModel) -> None:
    assert sample(llama, requests()) == sample(llama, requests())


@pytest.mark.parametrize("limit", [1, 5, 7, 100])
def test_the_batch_size_changes_no_text(llama: PreTrainedModel, limit: int) -> None:
    together = sample(llama, requests())
    apart = sample(llama, requests(), max_batch_sequences=limit)
    assert [s.token_ids for s in apart] == [s.token_ids for s in together]
    assert [s.finish_reason for s in apart] == [s.finish_reason for s in together]


def test_a_completion_does_not_depend_on_its_neighbours(llama: PreTrainedModel) -> None:
    asked = requests()
    alone = sample(llama, [Request(asked[1].prompt_ids, asked[1].seeds[2:3], 24)])
    together = [s for s in sample(llama, asked) if (s.request_index, s.sample_index) == (1, 2)]
    assert alone[0].token_ids == together[0].token_ids


def test_budgets_belong_to_requests(llama: PreTrainedModel) -> None:
    short = Request((5, 6), (1, 2, 3), 1)
    got = sample(llama, [short, *requests(max_tokens=9)])
    assert all(len(s.token_ids) == 1 for s in got if s.request_index == 0)
    assert max(len(s.token_ids) for s in got) == 9


def test_finished_completions_are_yielded_at_once(llama: PreTrainedModel) -> None:
    found = LocalSampler(llama, None, END).sample(requests(), SamplingSpec())  # type: ignore[arg-type]
    lengths = [len(s.token_ids) for s in found]
    assert lengths == sorted(lengths)


def test_frequencies_follow_the_model(llama: PreTrainedModel) -> None:
    prompt = (5, 6, 7)
    many = Request(prompt, tuple(seed_of("many", i) for i in range(4000)), 1)
    got = sample(llama, [many], max_batch_sequences=4000)
    counts = torch.bincount(torch.tensor([s.token_ids[0] for s in got]), minlength=320) / 4000
    with torch.no_grad():
        probs = torch.softmax(llama(torch.tensor([prompt])).logits[0, -1], -1)
    torch.testing.assert_close(counts, probs, atol=0.02, rtol=0)


def test_stop_strings(llama: PreTrainedModel, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    plain = sample(llama, requests())
    texts = [str(tiny_tokenizer.decode(list(s.token_ids))) for s in plain]
    stop = next(t[4:6] for t in texts if len(t) > 12 and t[4:6].isprintable() and t[4:6].isascii())
    got = sample(llama, requests(), tokenizer=tiny_tokenizer, stop=[stop])
    assert any(stop in text for text in texts)
    for before, after, text in zip(plain, got, texts, strict=True):
        if stop in text:
            assert after.finish_reason == "stopped"
            ended = str(tiny_tokenizer.decode(list(after.token_ids)))
            assert stop in ended
            assert stop not in str(tiny_tokenizer.decode(list(after.token_ids[:-1])))
        else:
            assert after.token_ids == before.token_ids


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request((), (1,), 5), "a prompt has no tokens"),
        (Request((5,), (1,), 0), "rollout.max_tokens = 0 must be at least 1"),
        (
            Request((5,) * 10, (1,), 55),
            "a prompt of 10 tokens and rollout.max_tokens = 55 don't fit",
        ),
    ],
)
def test_what_can_not_be_sampled_is_refused(
    llama: PreTrainedModel, request_: Request, says: str
) -> None:
    with pytest.raises(MarkbookError, match=says):
        sample(llama, [request_], context_tokens=64)


def test_a_prompt_that_just_fits_is_sampled(llama: PreTrainedModel) -> None:
    (got,) = sample(llama, [Request((5,) * 10, (1,), 246)], context_tokens=256)
    assert got.finish_reason in ("stopped", "truncated")


def test_nothing_asked_for_gives_nothing(llama: PreTrainedModel) -> None:
    assert sample(llama, []) == []
    assert sample(llama, [Request((5,), (), 5)]) == []
