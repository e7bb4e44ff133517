"""The corpus: honest about the held-out split, and mixed as its tables say."""

import re
from collections import Counter
from functools import cache

import pytest
from transformers import PreTrainedTokenizerBase

from markbook.demo import corpus
from markbook.demo.corpus import Document, documents, mixture, render_prompt
from markbook.demo.tokenizer import TAGS, train_tokenizer
from markbook.recipe import PromptRecipe
from markbook.tasks.chains import Chains, find_steps, is_held_out, parse_terms, step_verdicts
from markbook.template import load_template
from markbook.verify import MarkingRules, mark_answer

COUNT = 6000
PROMPT = re.compile(r"([0-9+]+) mod 10 = \?")


@cache
def sample() -> tuple[Document, ...]:
    return tuple(documents(COUNT, seed=0))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(text for d in sample() for text in (d.prompt, d.solution))


def test_the_same_seed_gives_the_same_corpus() -> None:
    assert tuple(documents(200, 3)) == tuple(documents(200, 3))
    assert tuple(documents(200, 3)) != tuple(documents(200, 4))


def test_nothing_held_out_or_longer_is_in_it_even_where_a_text_runs_on() -> None:
    held_out = {p.id for split in ("test", "longer") for p in Chains().problems(split)}
    for document in sample():
        chains = PROMPT.findall(document.prompt + document.solution)
        assert chains
        for chain in chains:
            assert chain not in held_out
            assert not is_held_out(parse_terms(chain))
            assert 2 <= len(parse_terms(chain)) <= 5


def test_levels_are_mixed_as_the_tables_say() -> None:
    levels = [len(parse_terms(PROMPT.findall(d.prompt)[0])) for d in sample()]
    primer = int(corpus.PRIMER * COUNT)
    assert set(levels[:primer]) == {2}
    counts = Counter(levels[primer:])
    for level, expected in corpus.LEVELS.items():
        assert counts[level] / (COUNT - primer) == pytest.approx(expected, abs=0.03)


def test_two_fifths_are_laid_out_as_asked() -> None:
    formats = [mark_answer(d.solution, "0", MarkingRules()).components["format"] for d in sample()]
    expected = sum(corpus.FORMATS[name] for name in ("as asked", "no box", "two boxes"))
    assert sum(formats) / COUNT == pytest.approx(expected, abs=0.03)
    assert sum(corpus.FORMATS.values()) == pytest.approx(1)
    assert sum(corpus.STYLES.values()) == pytest.approx(1)


def test_a_third_guess_without_work() -> None:
    guesses = sum("it is" in d.solution and not find_steps(d.solution) for d in sample())
    assert guesses / COUNT == pytest.approx(corpus.STYLES["direct"], abs=0.03)


def test_a_tenth_of_the_steps_is_wrong() -> None:
    verdicts: list[bool] = []
    for document in sample():
        if "wait" not in document.solution and "mod" not in document.solution:
            terms = parse_terms(PROMPT.findall(document.prompt)[0])
            verdicts += step_verdicts(terms, find_steps(document.solution))
    assert len(verdicts) > 3000
    assert verdicts.count(False) / len(verdicts) == pytest.approx(corpus.WRONG_STEP, abs=0.02)


def test_what_is_corrected_ends_right() -> None:
    from random import Random

    rng = Random(1)
    for _ in range(300):
        terms = tuple(rng.randrange(10) for _ in range(4))
        work, answer = corpus._corrected(rng, terms)
        assert answer == sum(terms) % 10
        verdicts = step_verdicts(terms, find_steps(work))
        assert verdicts.count(True) == 3
        assert verdicts[-1]


def test_every_document_comes_back_from_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    for document in sample()[::7]:
        for text in (document.prompt, document.solution):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    odd = "\\frac{1}{2} ünïcode \n <think"
    assert tokenizer.decode(tokenizer(odd)["input_ids"]) == odd


def test_tags_and_digits_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    for piece in (*TAGS, *"0123456789", "<end>"):
        assert len(tokenizer(piece)["input_ids"]) == 1
    assert len(tokenizer("12345")["input_ids"]) == 5
    assert len(tokenizer) <= 320


def test_prompts_are_those_of_the_run(tokenizer: PreTrainedTokenizerBase) -> None:
    """The base must have read the very ids that a run's template gives."""
    template = load_template(PromptRecipe(template="chains"), tokenizer)
    for problem in Chains().problems("train")[::200]:
        text, ids = template.render(problem.prompt)
        assert text == render_prompt(str(problem.prompt))
        assert list(ids) == tokenizer(text)["input_ids"]
        joined = tokenizer(text + "<think>")["input_ids"]
        assert joined[: len(ids)] == list(ids)


def test_the_record_names_every_share() -> None:
    assert mixture() == {
        "primer": corpus.PRIMER,
        "primer_levels": corpus.PRIMER_LEVELS,
        "levels": corpus.LEVELS,
        "styles": corpus.STYLES,
        "formats": corpus.FORMATS,
        "wrong_step": corpus.WRONG_STEP,
        "wrong_first_try": corpus.WRONG_FIRST_TRY,
    }
