"""Checkpoints: everything that a step's successor depends on, written all or not at all.

A checkpoint is a directory that appears under its final name in one rename, after every byte of
it is on the disk. So whatever has that name is whole, and a kill at any moment leaves at worst a
temporary directory that the next start clears away.
"""

import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from markbook.errors import MarkbookError
from markbook.policy import Policy
from markbook.storage import clear, publish

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Position:
    """Where a run stands between two steps."""

    step: int
    """Steps finished: the number of the next one."""
    data_position: int
    """Place in the endless stream of shuffled epochs of the next problem to draw."""


def save(directory: Path, policy: Policy, position: Position, keep: int) -> Path:
    """Write a checkpoint under `directory`; then delete all but the latest `keep` (0: none)."""
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"step-{position.step:06d}"
    temporary = directory / f".{final.name}.tmp"
    clear(temporary)
    temporary.mkdir()
    for name, tensors in policy.state():
        save_file(
            {n: t.contiguous().cpu() for n, t in tensors.items()}, temporary / f"{name}.safetensors"
        )
    torch.save(
        {
            "optimizer": policy.optimizer.state_dict(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "numpy": np.random.get_state(legacy=True),  # a user's task may use it
            "python": random.getstate(),
        },
        temporary / "state.pt",
    )
    facts = {
        "step": position.step,
        "data_position": position.data_position,
        "updates": policy.updates,
    }
    (temporary / "position.json").write_text(json.dumps(facts, indent=2) + "\n")
    publish(temporary, final)
    if keep:
        for old in checkpoints(directory)[:-keep]:
            remove(old)
    return final


def remove(directory: Path) -> None:
    """Delete a checkpoint; renamed first, so that no half of one is ever taken for a whole."""
    doomed = directory.with_name(f".{directory.name}.old")
    clear(doomed)
    directory.rename(doomed)
    shutil.rmtree(doomed)


def checkpoints(directory: Path) -> list[Path]:
    """List the checkpoints under a directory, oldest first."""
    found = [path for path in directory.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def clear_leftovers(directory: Path) -> None:
    """Delete what a kill left half-written or half-deleted."""
    for pattern in (".step-*.tmp", ".step-*.old"):
        for path in directory.glob(pattern):
            shutil.rmtree(path)


def load(path: Path, policy: Policy) -> Position:
    """Put a checkpoint's state into a policy and the random generators.

    Raises `MarkbookError` where a file of it is missing, damaged or of another model.
    """
    try:
        facts = json.loads((path / "position.json").read_text())
        weights: dict[str, Tensor] = load_file(path / "weights.safetensors")
        reference = None
        if (path / "reference.safetensors").exists():
            reference = load_file(path / "reference.safetensors")
        # Written by this program into the user's own run directory, so it may hold objects.
        state: dict[str, Any] = torch.load(path / "state.pt", weights_only=False)
        policy.restore(weights, reference, state["optimizer"], facts["updates"])
    except (OSError, KeyError, ValueError, RuntimeError, EOFError, SafetensorError) as error:
        raise MarkbookError(
            f"{path}: this checkpoint can't be loaded ({type(error).__name__}: {error}); "
            "delete it to go on from the one before."
        ) from error
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    return Position(facts["step"], facts["data_position"])
