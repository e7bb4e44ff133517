"""Recipes as TOML: read with every key and type checked, written so that they run again."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from markbook.errors import MarkbookError, suggestion
from markbook.recipe import Recipe, check

T = TypeVar("T")

PATH_FIELDS = ("model.path", "model.config", "data.path", "data.test_path", "data.task")
"""Fields that may name files. In a recipe file they are relative to that file's folder."""


def read_recipe(path: Path) -> Recipe:
    """Read, check and return the recipe in a TOML file.

    Raises `MarkbookError` for a file that is missing or no TOML, an unknown key (with the
    nearest known one), a value of the wrong type, and a value out of range.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MarkbookError(f"{path}: there is no such recipe file.{_siblings(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MarkbookError(f"{path}: can't be read as a recipe: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise MarkbookError(f"{path}: is not valid TOML: {error}.") from None
    recipe = build(Recipe, table, str(path))
    recipe = with_paths(recipe, path.resolve().parent)
    check(recipe, str(path))
    return recipe


def _siblings(path: Path) -> str:
    folder = path.parent
    names = sorted(p.name for p in folder.glob("*.toml")) if folder.is_dir() else []
    return f" {folder} holds {', '.join(names)}." if names else ""


def build(cls: type[T], table: Mapping[str, Any], source: str, prefix: str = "") -> T:
    """Make a recipe dataclass from a TOML table; what the table leaves out keeps its default."""
    hints = get_type_hints(cls)
    for key in table:
        if key not in hints:
            kind = "key" if prefix else "table or key"
            raise MarkbookError(
                f"{source}: {prefix}{key} is not a {kind} of a recipe{suggestion(key, hints)}."
            )
    return cls(**{k: _value(hints[k], v, source, f"{prefix}{k}") for k, v in table.items()})


def _value(hint: Any, value: Any, source: str, name: str) -> Any:
    """Check one TOML value against its field's type and return it in the field's form."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise MarkbookError(f"{source}: {name} = {value!r} must be a table ([{name}]).")
        return build(hint, value, source, f"{name}.")
    if origin is Literal:
        if value not in arguments:
            near = suggestion(str(value), [str(a) for a in arguments])
            allowed = ", ".join(map(repr, arguments))
            raise MarkbookError(f"{source}: {name} = {value!r} must be one of {allowed}{near}.")
        return value
    if origin is tuple and isinstance(value, list):
        hints = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(hints) == len(value):
            pairs = zip(hints, value, strict=True)
            return tuple(_value(own, item, source, name) for own, item in pairs)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return MappingProxyType(
            {k: _value(arguments[1], v, source, f"{name}.{k}") for k, v in value.items()}
        )
    if type(value) is hint or (hint is float and type(value) is int):
        return hint(value)
    raise MarkbookError(f"{source}: {name} = {value!r} must be {_in_words(hint)}.")


def _in_words(hint: Any) -> str:
    simple = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if hint in simple:
        return simple[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list, each item {_in_words(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(_in_words(a) for a in arguments)}"
    if isinstance(hint, UnionType) or origin is None:
        return str(hint)
    return "a table of numbers"


def with_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with each relative path that exists below `folder` made absolute.

    What does not exist there may be a hub id or a built-in name, so it stays as it is.
    """
    for name in PATH_FIELDS:
        value = get(recipe, name)
        file, colon, rest = value.partition(":") if name == "data.task" else (value, "", "")
        if file and (folder / file).exists():
            recipe = replace(recipe, name, str((folder / file).resolve()) + colon + rest)
    template = recipe.prompt.template
    if template.endswith(".jinja") and (folder / template).exists():
        recipe = replace(recipe, "prompt.template", str((folder / template).resolve()))
    return recipe


def get(recipe: Any, name: str) -> Any:
    """Return the value of a dotted field name."""
    for part in name.split("."):
        recipe = getattr(recipe, part)
    return recipe


def replace(node: T, name: str, value: Any) -> T:
    """Return a copy of a recipe with one dotted field replaced."""
    first, _, rest = name.partition(".")
    if rest:
        value = replace(getattr(node, first), rest, value)
    return dataclasses.replace(node, **{first: value})  # type: ignore[type-var]  # T is a recipe


def to_table(node: Any) -> dict[str, Any]:
    """Return a recipe as plain dicts and lists, as TOML and JSON know them."""
    table: dict[str, Any] = {}
    for part in dataclasses.fields(node):
        value = getattr(node, part.name)
        if dataclasses.is_dataclass(value):
            table[part.name] = to_table(value)
        elif isinstance(value, Mapping):
            table[part.name] = dict(value)
        elif isinstance(value, tuple):
            table[part.name] = [list(v) if isinstance(v, tuple) else v for v in value]
        else:
            table[part.name] = value
    return table


def to_toml(recipe: Recipe) -> str:
    """Return the whole recipe as TOML; `read_recipe` gives the same recipe back."""
    return tomli_w.dumps(to_table(recipe))
