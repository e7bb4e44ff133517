import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["answer", "extract", "format", "latex", "numbers", "units"])
def test_the_examples_in_docstrings_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"markbook.verify.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
