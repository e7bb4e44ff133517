"""Prompts: a problem and a template -> the text and ids that the model continues.

A template is a Jinja file or the tokenizer's own chat template. Where it ends by opening a tag for
the model (`<think>`), that opening belongs to every completion too; `Template.prefill` is it.
"""

import datetime
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from markbook.errors import MarkbookError, suggestion
from markbook.recipe import PromptRecipe
from markbook.records import Message, Prompt

CHAT = "chat"
VARIABLES = ("problem", "messages")
"""What a Jinja template may use: a problem's text, or its chat messages."""

TODAY = datetime.date(2024, 7, 26)
"""The date in prompts of chat templates that ask for today's: the day Llama's names by default.
The real one would make a run that is resumed tomorrow another run."""

_TODAY_CALL = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")


def environment() -> jinja2.Environment:
    """Return the Jinja environment of prompt templates: sandboxed, and strict about names.

    One newline at the end of a file is dropped, as Jinja does by default, so that an editor that
    adds it changes nothing.
    """
    return ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)


def shipped_templates() -> tuple[str, ...]:
    """Return the names of the templates that come with markbook."""
    folder = resources.files("markbook") / "templates"
    files = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".jinja") for n in files if n.endswith(".jinja")))


@dataclass(frozen=True)
class Template:
    """Renders problems for one tokenizer. Make it with `load_template`."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    jinja: jinja2.Template | None
    """None for the tokenizer's own chat template."""
    uses: frozenset[str]
    """Which of `problem` and `messages` the Jinja template uses."""
    system: str
    added: str
    """The recipe's `prefill`, put at the end of every prompt."""
    tags: tuple[str, ...]
    prefill: str = ""
    """What every prompt ends with and every completion begins with, for the marks."""

    def render(self, prompt: Prompt) -> tuple[str, tuple[int, ...]]:
        """Return a prompt's text and its ids, the tokenizer's BOS once at the front if it has one.

        Raises `MarkbookError` where the template can't take this prompt, or where the prompt
        itself opens a tag, which would then be missing in front of the completion.
        """
        text = self._written(prompt) + self.added
        if (end := _opening(text, self.tags)) and not self.prefill.endswith(end):
            raise MarkbookError(
                f"prompt template {self.name}: a problem ends with {end!r}, which would be missing "
                "from its completions; take it out and set prompt.prefill to it."
            )
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if self.jinja is not None and tuple(ids[: len(self._bos)]) != self._bos:
            ids = [*self._bos, *ids]
        return text, tuple(ids)

    def _written(self, prompt: Prompt) -> str:
        """Return the prompt as the template writes it."""
        if self.jinja is None:
            return self._chat(prompt)
        if not isinstance(prompt, str) and "messages" not in self.uses:
            raise MarkbookError(
                f"prompt template {self.name}: the problems are chat messages, which it does not "
                "use; set prompt.template = 'chat', or use {{ messages }} in it."
            )
        values = {"messages": _messages(prompt)}
        try:
            # A missing `problem` is told by StrictUndefined where a template uses it.
            return self.jinja.render(
                values | ({"problem": prompt} if isinstance(prompt, str) else {})
            )
        except Exception as error:  # a user's template may raise anything
            raise MarkbookError(
                f"prompt template {self.name}: can't be filled in: {type(error).__name__}: {error}."
            ) from error

    def _chat(self, prompt: Prompt) -> str:
        messages = _messages(prompt)
        if self.system:
            if messages[0]["role"] == "system":
                raise MarkbookError(
                    "prompt.system is set, but a problem has a system message of its own; leave "
                    "one of them out."
                )
            messages.insert(0, {"role": "system", "content": self.system})
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=self._chat_template,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # the model's author may raise anything
            raise MarkbookError(
                f"prompt template chat: the tokenizer's template does not take the messages: "
                f"{type(error).__name__}: {error}."
            ) from error
        return str(text)

    @cached_property
    def _chat_template(self) -> str:
        try:
            source: str = self.tokenizer.get_chat_template()
        except ValueError:
            raise MarkbookError(
                "prompt.template = 'chat', but this tokenizer has no chat template; choose "
                f"{' or '.join(shipped_templates())}, or give a .jinja file."
            ) from None
        return _TODAY_CALL.sub(lambda call: repr(TODAY.strftime(call[2])), source)

    @cached_property
    def _bos(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of a text, if anything."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a")["input_ids"]
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start])
        return ()


def load_template(
    recipe: PromptRecipe,
    tokenizer: PreTrainedTokenizerBase,
    tags: Sequence[str] = ("think", "answer"),
) -> Template:
    """Return the template that a recipe names, tried out on a first problem.

    `tags` are those of the marking rules: an opening of one of them, or of `think`, at the end of
    every prompt becomes the prefill.

    Raises `MarkbookError` for a name or file that isn't there (with the nearest), a syntax error
    (with its line), a variable that templates don't have, a template that does not use the
    problem, a tokenizer without chat template, and a prefill that is there already.
    """
    jinja, uses = (None, frozenset({"messages"}))
    if recipe.template != CHAT:
        jinja, uses = _compile(*_source(recipe.template))
    template = Template(
        name=recipe.template,
        tokenizer=tokenizer,
        jinja=jinja,
        uses=uses,
        system=recipe.system,
        added=recipe.prefill,
        tags=tuple(dict.fromkeys((*tags, "think"))),
    )
    opening = _opening(template._written("x"), template.tags)
    if opening and recipe.prefill.lstrip().startswith(opening.strip()):
        raise MarkbookError(
            f"prompt.prefill = {recipe.prefill!r}, but the template {recipe.template} ends with "
            f"{opening!r} already; leave that out of prompt.prefill."
        )
    return replace(template, prefill=opening + recipe.prefill)


def _source(name: str) -> tuple[str, str]:
    """Return where a template is, for messages, and its text."""
    if name in shipped_templates():
        file = resources.files("markbook") / "templates" / f"{name}.jinja"
        return f"{name}.jinja", file.read_text(encoding="utf-8")
    path = Path(name).expanduser()
    if path.suffix != ".jinja":
        known = (*shipped_templates(), CHAT)
        raise MarkbookError(
            f"prompt.template = {name!r} is none of {', '.join(known)}, and no .jinja file"
            f"{suggestion(name, known)}."
        )
    try:
        return str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent
        names = sorted(p.name for p in folder.glob("*.jinja")) if folder.is_dir() else []
        raise MarkbookError(
            f"prompt.template = {name!r}: there is no such file{suggestion(path.name, names)}; "
            f"shipped are {', '.join(shipped_templates())}."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise MarkbookError(f"prompt.template = {name!r}: can't be read: {error}.") from None


def _compile(where: str, source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return a template's code and which variables it uses."""
    rules = environment()
    try:
        names = jinja2.meta.find_undeclared_variables(rules.parse(source)) - set(rules.globals)
        code = rules.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise MarkbookError(f"{where}, line {error.lineno}: {error.message}.") from None
    for unknown in sorted(names - set(VARIABLES)):
        raise MarkbookError(
            f"{where}: {{{{ {unknown} }}}} is not known in a prompt template, which has "
            f"{{{{ problem }}}} and {{{{ messages }}}}{suggestion(unknown, VARIABLES)}."
        )
    if not names:
        raise MarkbookError(
            f"{where}: never uses {{{{ problem }}}}, so every prompt would be the same."
        )
    return code, frozenset(names)


def _messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as chat messages, which must end with one that wants an answer."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages = list(prompt)
    if not messages or messages[-1]["role"] == "assistant":
        raise MarkbookError(
            "a problem's chat messages must end with a question, not with the assistant's own "
            "words; to begin the answer for the model, set prompt.prefill."
        )
    return messages


def _opening(text: str, tags: Sequence[str]) -> str:
    r"""Return the opening tag at the very end of a text, white space after it included, or ''.

    >>> _opening("Assistant: <think>\n", ("think", "answer"))
    '<think>\n'
    >>> _opening("Write <think> first.", ("think",)), _opening("<think></think>", ("think",))
    ('', '')
    """
    found = re.search(rf"<(?:{'|'.join(map(re.escape, tags))})>\s*\Z", text)
    return found[0] if found else ""


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], end_ids: Collection[int]) -> str:
    """Return the text of sampled ids, without the end token if one is last.

    Special tokens within are written out: some models have their tags among them.
    """
    kept = ids[:-1] if ids and ids[-1] in end_ids else ids
    text: Any = tokenizer.decode(
        list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return str(text)


def check_round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Check that the tokenizer gives a text back; marks are made on decoded text.

    A space more or less at the very front is let through: tokenizers that mark the beginning of a
    word write one there, and no mark depends on it.

    Raises `MarkbookError` that names the characters lost and shows where the texts part.
    """
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    back = decode(tokenizer, ids, ())
    if back.removeprefix(" ") == text.removeprefix(" "):
        return
    lost = sorted((Counter(text) - Counter(back)).keys())
    part = next(
        (i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b),
        min(len(text), len(back)),
    )
    before, after = text[max(0, part - 10) : part + 10], back[max(0, part - 10) : part + 10]
    what = f"the characters {', '.join(map(repr, lost))} are lost" if lost else "it differs"
    raise MarkbookError(
        f"the tokenizer does not give a text back as it was ({what}: {before!r} became {after!r}), "
        "so marks on decoded text would be wrong; use the tokenizer that the model came with."
    )
