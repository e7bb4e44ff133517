import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from markbook.errors import MarkbookError
from markbook.recipe import PromptRecipe
from markbook.template import (
    Template,
    check_round_trip,
    decode,
    load_template,
    shipped_templates,
)
from markbook.verify import MarkingRules, mark_answer

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def chat_tokenizer(tiny_llama: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tiny_llama)
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture
def framing_tokenizer(tiny_tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Puts `<pad>` in front of a text and `<end>` behind it, as some put BOS and EOS."""
    backend = Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single="<pad> $A <end>", special_tokens=[("<pad>", 0), ("<end>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<pad>", eos_token="<end>")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(source: str) -> str:
        (tmp_path / "own.jinja").write_text(source)
        return str(tmp_path / "own.jinja")

    return to_file


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


# Text templates


def test_shipped_templates_ask_for_what_the_rules_mark(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert {"r1-zero", "few-shot"} <= set(shipped_templates())
    for name in ("r1-zero", "few-shot"):
        template = load_template(PromptRecipe(template=name), tiny_tokenizer)
        text, ids = template.render("What is {{ 2 }} + <2>?")
        assert text.count("What is {{ 2 }} + <2>?") == 1
        assert all(part in text for part in ("<think>", "</think>", "<answer>", "\\boxed{"))
        assert text.endswith(":")
        assert "{#" not in text
        assert not text.startswith("\n")
        assert ids == plain_ids(tiny_tokenizer, text)
        assert template.prefill == ""


def test_worked_examples_keep_the_format_they_show(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    text, _ = load_template(PromptRecipe(template="few-shot"), tiny_tokenizer).render("X")
    solutions = [part.split("\n\nProblem:")[0] for part in text.split("Solution:")[1:]]
    golds = ["9", "43", "2.5"]
    assert solutions[3:] == [""]
    for solution, gold in zip(solutions[:3], golds, strict=True):
        assert mark_answer(solution, gold, MarkingRules()).components == {
            "accuracy": 1.0,
            "format": 1.0,
        }


def test_own_file(write: Any, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    own = PromptRecipe(template=write("Q: {{ problem | trim }}\nA:\n"))
    assert load_template(own, tiny_tokenizer).render("  1 < 2 & 3\n ")[0] == "Q: 1 < 2 & 3\nA:"


def test_front_token_once_and_no_end_token(
    write: Any, framing_tokenizer: PreTrainedTokenizerBase
) -> None:
    for source in ("{{ problem }}", "<pad>{{ problem }}"):
        template = load_template(PromptRecipe(template=write(source)), framing_tokenizer)
        assert template.render("12")[1] == (0, *plain_ids(framing_tokenizer, "12"))


def test_messages_in_an_own_template(write: Any, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    own = PromptRecipe(
        template=write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}A:")
    )
    template = load_template(own, tiny_tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert template.render(messages)[0] == "system: Be brief.\nuser: Why?\nA:"
    assert template.render("Why?")[0] == "user: Why?\nA:"


@given(problem=st.text(max_size=40))
def test_any_problem_is_in_its_prompt_as_it_is(
    problem: str, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    template = load_template(PromptRecipe(template="r1-zero"), tiny_tokenizer)
    text, ids = template.render(problem)
    assert f"User: {problem}\n\nAssistant:" in text
    if problem.isascii():
        assert tiny_tokenizer.decode(list(ids)) == text


# Prefill


@pytest.mark.parametrize(
    ("source", "prefill", "expected"),
    [
        ("{{ problem }}", "", ""),
        ("{{ problem }} <think>", "", "<think>"),
        ("{{ problem }}\n<think>\n\n", "", "<think>\n"),  # the file's last newline is dropped
        ("{{ problem }}\n<think>\n\n", "Well, ", "<think>\nWell, "),
        ("{{ problem }}", "<think>\n", "<think>\n"),
        ("Use <think>. {{ problem }}", "", ""),
        ("{{ problem }} <think>\n\n</think>\n\n", "", ""),
        ("{{ problem }} <assistant>", "", ""),
        ("{{ problem }} <answer>", "", "<answer>"),
    ],
)
def test_prefill(
    write: Any,
    tiny_tokenizer: PreTrainedTokenizerBase,
    source: str,
    prefill: str,
    expected: str,
) -> None:
    template = load_template(PromptRecipe(write(source), prefill=prefill), tiny_tokenizer)
    assert template.prefill == expected
    text, ids = template.render("Why?")
    assert text.endswith(expected)
    assert ids == plain_ids(tiny_tokenizer, text)


def test_prefill_by_the_tags_of_the_rules(
    write: Any, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    own = PromptRecipe(template=write("{{ problem }} <proof>"))
    assert load_template(own, tiny_tokenizer).prefill == ""
    assert load_template(own, tiny_tokenizer, tags=("proof",)).prefill == "<proof>"


def test_prefill_that_is_there_already(write: Any, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    own = PromptRecipe(write("{{ problem }}\n<think>"), prefill="<think>\n")
    with pytest.raises(MarkbookError, match=r"prompt.prefill = '<think>\\n', but .*already"):
        load_template(own, tiny_tokenizer)


def test_problem_that_opens_a_tag_itself(
    write: Any, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    template = load_template(PromptRecipe(write("{{ problem }}")), tiny_tokenizer)
    with pytest.raises(MarkbookError, match=r"ends with '<think>\\n'.*prompt.prefill"):
        template.render("Prove it. <think>\n")


# Chat templates


def test_chat(chat_tokenizer: PreTrainedTokenizerBase) -> None:
    template = load_template(PromptRecipe(template="chat"), chat_tokenizer)
    text, ids = template.render("Why?")
    assert text == "[user]Why?<end>[assistant]"
    expected = chat_tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why?"}], add_generation_prompt=True
    )
    assert list(ids) == expected["input_ids"]  # type: ignore[call-overload, index]
    assert ids.count(1) == 1


def test_chat_with_system_message_and_prefill(chat_tokenizer: PreTrainedTokenizerBase) -> None:
    recipe = PromptRecipe(template="chat", system="Be brief.", prefill="<think>\n")
    template = load_template(recipe, chat_tokenizer)
    assert template.render("Why?")[0] == (
        "[system]Be brief.<end>[user]Why?<end>[assistant]<think>\n"
    )
    assert template.prefill == "<think>\n"
    with pytest.raises(MarkbookError, match=r"prompt.system is set, but a problem has"):
        template.render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])


def test_chat_template_that_opens_the_tag(chat_tokenizer: PreTrainedTokenizerBase) -> None:
    chat_tokenizer.chat_template = CHAT.replace("[assistant]", "[assistant]<think>\n")
    assert load_template(PromptRecipe(template="chat"), chat_tokenizer).prefill == "<think>\n"


def test_front_token_of_a_chat_template_is_its_own(
    framing_tokenizer: PreTrainedTokenizerBase,
) -> None:
    framing_tokenizer.chat_template = CHAT
    template = load_template(PromptRecipe(template="chat"), framing_tokenizer)
    assert template.render("12")[1] == plain_ids(framing_tokenizer, "[user]12<end>[assistant]")


def test_messages_must_end_with_a_question(chat_tokenizer: PreTrainedTokenizerBase) -> None:
    template = load_template(PromptRecipe(template="chat"), chat_tokenizer)
    for messages in ([], [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]):
        with pytest.raises(MarkbookError, match="must end with a question"):
            template.render(messages)


@pytest.mark.parametrize("form", ["%d %b %Y", "%Y-%m-%d"])
def test_a_prompt_is_the_same_on_every_day(
    chat_tokenizer: PreTrainedTokenizerBase, form: str
) -> None:
    chat_tokenizer.chat_template = (
        f'{{% if strftime_now is defined %}}{{{{ strftime_now("{form}") }}}}{{% endif %}}' + CHAT
    )
    text, _ = load_template(PromptRecipe(template="chat"), chat_tokenizer).render("Why?")
    fixed = datetime.date(2024, 7, 26).strftime(form)
    assert text == f"{fixed}[user]Why?<end>[assistant]"


def test_chat_template_that_refuses(chat_tokenizer: PreTrainedTokenizerBase) -> None:
    chat_tokenizer.chat_template = "{{ raise_exception('no system here') }}{{ messages }}"
    with pytest.raises(MarkbookError, match=r"does not take the messages.*no system here"):
        load_template(PromptRecipe(template="chat"), chat_tokenizer)


# Faults


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("r1zero", "did you mean 'r1-zero'"),
        ("chta", "did you mean 'chat'"),
        ("nowhere/own.jinja", "no such file.*few-shot.*r1-zero"),
    ],
)
def test_unknown_name(tiny_tokenizer: PreTrainedTokenizerBase, name: str, message: str) -> None:
    with pytest.raises(MarkbookError, match=message):
        load_template(PromptRecipe(template=name), tiny_tokenizer)


def test_misspelt_file(write: Any, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    name = write("{{ problem }}").replace("own", "onw")
    with pytest.raises(MarkbookError, match=r"did you mean 'own.jinja'"):
        load_template(PromptRecipe(template=name), tiny_tokenizer)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("one\ntwo {{ problem }\n", r"own.jinja, line 2: "),
        ("{% if problem %}", r"own.jinja, line 1: "),
        ("Answer now.", r"never uses \{\{ problem \}\}"),
        ("{{ problm }}", r"\{\{ problm \}\} is not known .*did you mean 'problem'"),
        ("{{ problem }}{{ answer }}", r"\{\{ answer \}\} is not known"),
        ("{{ problem.text }}", "UndefinedError"),
        ("{{ problem + 1 }}", "TypeError"),
        ("{{ problem.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_faulty_file(
    write: Any, tiny_tokenizer: PreTrainedTokenizerBase, source: str, message: str
) -> None:
    with pytest.raises(MarkbookError, match=message):
        load_template(PromptRecipe(template=write(source)), tiny_tokenizer)


def test_file_that_is_no_text(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "own.jinja").write_bytes(b"\xff\xfe{{ problem }}")
    with pytest.raises(MarkbookError, match="can't be read"):
        load_template(PromptRecipe(template=str(tmp_path / "own.jinja")), tiny_tokenizer)


def test_no_chat_template(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(MarkbookError, match=r"has no chat template; choose .*r1-zero"):
        load_template(PromptRecipe(template="chat"), tiny_tokenizer)


def test_messages_for_a_text_template(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    template: Template = load_template(PromptRecipe(template="r1-zero"), tiny_tokenizer)
    with pytest.raises(MarkbookError, match=r"problems are chat messages.*'chat'"):
        template.render([{"role": "user", "content": "Why?"}])


# Decoding


def test_decode_drops_one_end_token(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    ids = plain_ids(tiny_tokenizer, "7 .<pad> ,")
    assert decode(tiny_tokenizer, (*ids, 1), {1}) == "7 .<pad> ,"
    assert decode(tiny_tokenizer, (*ids, 1, 1), {1}) == "7 .<pad> ,<end>"
    assert decode(tiny_tokenizer, (*ids, 1), {0}) == "7 .<pad> ,<end>"
    assert decode(tiny_tokenizer, (), {1}) == ""
    assert decode(tiny_tokenizer, (1,), {1}) == ""


def words(*vocabulary: str, normalizer: Any = None) -> PreTrainedTokenizerBase:
    """A tokenizer of whole words that writes a word's beginning as sentencepiece does."""
    table = {word: i for i, word in enumerate(("<unk>", *vocabulary))}
    backend = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    if normalizer is not None:
        backend.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_round_trip(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    for text in (
        "",
        " x",
        "<think>\n 1 + 1\n</think>\n<answer>\\boxed{2}</answer>",
        "é ∑ 日\r\n\t",
    ):
        check_round_trip(tiny_tokenizer, text)
    check_round_trip(words("▁one", "▁two"), "one two")
    check_round_trip(words("▁one", "▁two"), " one two")


def test_round_trip_names_what_is_lost() -> None:
    with pytest.raises(MarkbookError, match=r"' ', 'x' are lost: 'one x' became 'one<unk>'"):
        check_round_trip(words("▁one", "▁two"), "one x")
    lower = words("▁one", "▁two", normalizer=normalizers.Lowercase())
    with pytest.raises(MarkbookError, match=r"characters 'O', 'T' are lost"):
        check_round_trip(lower, "One Two")
    swapped = words("▁one", "▁two", normalizer=normalizers.Replace("ne", "en"))
    with pytest.raises(MarkbookError, match=r"tokenizer does not give"):
        check_round_trip(swapped, "one two")
