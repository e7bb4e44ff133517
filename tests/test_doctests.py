"""The worked numbers that stand in docstrings as examples."""

import doctest
import importlib

import pytest

MODULES = [
    "advantage", "errors", "metrics", "objective", "rollout", "schedule", "seeding", "stats",
    "template", "tasks.chains", "memory", "runs", "plan",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"markbook.{name}")).failed == 0


def test_there_are_some() -> None:
    counts = [
        doctest.testmod(importlib.import_module(f"markbook.{name}")).attempted for name in MODULES
    ]
    assert sum(counts) > 10
