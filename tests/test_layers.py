"""Imports point one way, so that each layer can be read without those above it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "markbook"

LAYERS = [
    {"errors", "records", "seeding", "storage"},
    {"verify", "advantage", "objective", "stats", "recipe", "recipe_file", "schedule", "display"},
    {"batch", "sampling", "tasks", "source", "adapters", "memory", "ledger", "journal", "trackers"},
    {"policy", "models", "template", "runs"},
    {"rollout", "checkpoint", "plan"},
    {"metrics", "evaluate", "demo"},
    {"prepare"},
    {"train"},
    {"launch"},
    {"cli"},
]
"""Each layer may import from itself and from those before it."""

ALLOWED_UPWARDS = {("demo", "launch"), ("prepare", "demo"), ("cli", "demo"), ("plan", "prepare")}
"""`markbook demo` is a caller of launch and a supplier of prepare; both are imported where used."""

PURE = {"records", "seeding", "advantage", "objective", "batch", "stats", "schedule", "errors"}
PURE_IMPORTS = {"torch", "jaxtyping", "numpy", "tyro", "markbook"}


def level(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module in names)


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "markbook":
                found |= {f"markbook.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name not in ("__init__.py", "__main__.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "markbook" or len(parts) == 1 or parts[1] in (own, "__version__"):
            continue
        if (own, parts[1]) not in ALLOWED_UPWARDS:
            assert level(parts[1]) <= level(own), f"{own} must not import {parts[1]}"


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_pure_layer_needs_little(module: str) -> None:
    import sys

    for name in imports(PACKAGE / f"{module}.py"):
        first = name.split(".")[0]
        assert first in PURE_IMPORTS or first in sys.stdlib_module_names


def test_files_and_functions_stay_small() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 450, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                assert size <= 70, f"{path}: {node.name} has {size} lines"
