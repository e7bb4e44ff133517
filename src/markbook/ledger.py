"""The markbook itself: every completion with its mark, as Parquet, one shard a step.

`RUN/ledger/step-000012.parquet` holds what step 12 sampled to train on, and
`step-000012-evaluation.parquet` the held-out problems tried before that step. `SCHEMA` documents
the columns. A shard is a function of its content alone, without wall-clock: the same content gives
the same bits. DuckDB reads all shards as one view:

>>> connect(Path("runs/demo")).sql("select step, avg(reward) from ledger group by step")
... # doctest: +SKIP
"""

import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from markbook.errors import MarkbookError
from markbook.records import Group, Problem
from markbook.storage import sync

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row: TypeAlias = dict[str, Any]
"""One completion by column name, as `SCHEMA` has them, `phase` left out."""

TRAINING, EVALUATION = "training", "evaluation"
ROWS_AT_ONCE = 1024
"""Rows in one Parquet row group: bounds the memory of writing and of checking a shard."""

_SEAL, _UNSEALED = b"crc32=", b"00000000"
_PIECE = 1 << 20
_SHARD = re.compile(r"step-(\d{6,})(?:-([a-z]+))?\.parquet")


def _column(name: str, kind: pa.DataType, doc: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


SCHEMA = pa.schema(
    [
        _column("step", pa.int32(), "the step that sampled it; of an evaluation, the next step"),
        _column("phase", pa.string(), "training, or evaluation: marked but not trained on"),
        _column("split", pa.string(), "the task's split that the problem is from"),
        _column("draw", pa.int32(), "the sampling round of its step; over 0 where resampled"),
        _column("group_index", pa.int32(), "the group's place in its step and phase, from 0"),
        _column("problem_id", pa.string(), "the problem's id, unique within its task"),
        _column("problem", pa.string(), "the problem as text; chat messages as `role: content`"),
        _column("prompt", pa.string(), "the rendered prompt that the completion continues"),
        _column("answer", pa.string(), "the gold answer"),
        _column("level", pa.string(), "the problem's level, where it has one", nullable=True),
        _column("sample_index", pa.int32(), "the completion's place in its group, from 0"),
        _column("text", pa.string(), "the completion, a prefilled opening included"),
        _column("token_ids", pa.list_(pa.int32()), "the sampled ids, an end token included"),
        _column(
            "sampler_logprobs",
            pa.list_(pa.float32()),
            "natural log-probability of each id under the distribution it was drawn from",
        ),
        _column("num_tokens", pa.int32(), "how many ids"),
        _column("finish_reason", pa.string(), "stopped or truncated"),
        _column("policy_version", pa.int32(), "optimiser steps behind the weights that sampled it"),
        _column("status", pa.string(), "correct, incorrect, no_answer or unscorable"),
        _column("extracted", pa.string(), "the answer that was compared, if any", nullable=True),
        _column("reason", pa.string(), "why this status, in words"),
        _column(
            "components",
            pa.map_(pa.string(), pa.float64()),
            "the named scores that the reward is made from: components['format']",
        ),
        _column("step_verdicts", pa.list_(pa.bool_()), "is each step of it right; mostly empty"),
        _column("reward", pa.float64(), "null where unscorable", nullable=True),
        _column("advantage", pa.float64(), "null where not trained on", nullable=True),
        _column("used", pa.bool_(), "did it enter the step's update"),
    ]
)
"""The ledger's columns in order; each field's metadata has its meaning under `doc`."""


def rows_of(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float] | None],
    *,
    step: int,
    split: str,
    prompt_text: Callable[[Problem], str],
) -> list[Row]:
    """Return one row a completion, in the order of the groups and their samples.

    `advantages` has one sequence a group, aligned with its completions, NaN for an unscorable
    one; None for a group that was left out of the update. A character that UTF-8 can't hold (half
    a surrogate pair) is kept as its escape, such as `\\ud800`.
    """
    rows: list[Row] = []
    for group, values in zip(groups, advantages, strict=True):
        problem = group.problem
        level = problem.metadata.get("level")
        shared: Row = {
            "step": step,
            "split": split,
            "draw": group.draw,
            "group_index": group.index,
            "problem_id": _utf8(problem.id),
            "problem": _utf8(_words_of(problem)),
            "prompt": _utf8(prompt_text(problem)),
            "answer": _utf8(problem.answer),
            "level": None if level is None else _utf8(str(level)),
        }
        for completion, verdict, reward, advantage in zip(
            group.completions,
            group.verdicts,
            group.rewards,
            [math.nan] * len(group.completions) if values is None else values,
            strict=True,
        ):
            rows.append(
                shared
                | {
                    "sample_index": completion.sample_index,
                    "text": _utf8(completion.text),
                    "token_ids": completion.token_ids,
                    "sampler_logprobs": completion.sampler_logprobs,
                    "num_tokens": len(completion.token_ids),
                    "finish_reason": completion.finish_reason,
                    "policy_version": completion.policy_version,
                    "status": verdict.status,
                    "extracted": None if verdict.extracted is None else _utf8(verdict.extracted),
                    "reason": _utf8(verdict.reason),
                    "components": [(_utf8(k), v) for k, v in verdict.components.items()],
                    "step_verdicts": verdict.step_verdicts,
                    "reward": None if math.isnan(reward) else reward,
                    "advantage": None if math.isnan(advantage) else advantage,
                    "used": not math.isnan(advantage),
                }
            )
    return rows


def _words_of(problem: Problem) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in problem.prompt)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_shard(directory: Path, step: int, rows: Sequence[Row], name: str = TRAINING) -> Path:
    """Write the rows of one step and phase, all or nothing, and return the file's path.

    `name` becomes the rows' `phase`. An older shard of that step and phase is replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    suffix = "" if name == TRAINING else f"-{name}"
    final = directory / f"step-{step:06d}{suffix}.parquet"
    temporary = directory / f".{final.name}.tmp"
    with pq.ParquetWriter(
        temporary,
        SCHEMA,
        compression="zstd",
        compression_level=3,
        write_statistics=["step"],  # lets a query of one step pass over the other shards
    ) as writer:
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = [{"phase": name, **row} for row in rows[begin : begin + ROWS_AT_ONCE]]
            writer.write_table(pa.Table.from_pylist(part, SCHEMA))
        writer.add_key_value_metadata({"markbook": (_SEAL + _UNSEALED).decode()})
    _seal(temporary)
    sync(temporary)
    temporary.replace(final)
    sync(directory)
    return final


def _seal(path: Path) -> None:
    """Write into a shard's footer the CRC-32 of the file as it was with zeros in that place."""
    with path.open("r+b") as file:
        place = _seal_place(file)
        digits = _crc(file, place)
        file.seek(place)
        file.write(digits)


def _seal_place(file: IO[bytes]) -> int:
    """Return the offset of the checksum's digits, or -1 where the footer has none."""
    # Parquet ends with the footer, its length in four bytes, and `PAR1`.
    end = file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    start = file.seek(max(0, end - length))
    found = file.read(end - start).rfind(_SEAL)
    return -1 if found < 0 else start + found + len(_SEAL)


def _crc(file: IO[bytes], place: int) -> bytes:
    """Return the CRC-32 of a file, in hexadecimal, with zeros for the digits at `place`."""
    file.seek(0)
    crc, left = 0, place
    while piece := file.read(min(left, _PIECE)):
        crc, left = zlib.crc32(piece, crc), left - len(piece)
    crc = zlib.crc32(_UNSEALED, crc)
    file.seek(place + len(_UNSEALED))
    while piece := file.read(_PIECE):
        crc = zlib.crc32(piece, crc)
    return b"%08x" % crc


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a ledger."""

    path: Path
    step: int
    phase: str


def shards(directory: Path) -> list[Shard]:
    """List a ledger's shards in the order they were written; none where there is no directory."""
    found = []
    for path in directory.glob("step-*.parquet"):
        if match := _SHARD.fullmatch(path.name):
            found.append(Shard(path, int(match[1]), match[2] or TRAINING))
    return sorted(found, key=lambda shard: (shard.step, shard.phase))


def drop_from(directory: Path, step: int) -> None:
    """Delete every shard of that step and of later ones, and what a kill left half-written."""
    if not directory.exists():
        return
    for shard in shards(directory):
        if shard.step >= step:
            shard.path.unlink()
    for path in directory.glob(".step-*.parquet.tmp"):
        path.unlink()
    sync(directory)


def damage(path: Path) -> str | None:
    """Return what is wrong with a shard, in words, or None for a whole one.

    Compares the file with the checksum in its footer: DuckDB does not, and gives a flipped bit
    back as a wrong value.
    """
    try:
        with path.open("rb") as file:
            place = _seal_place(file)
            if place < 0:
                return "it has no checksum, so it is cut short or no shard"
            digits = _crc(file, place)
            file.seek(place)
            if file.read(len(digits)) != digits:
                return "its content is not what was written"
    except OSError as error:
        return f"it can't be read: {error.strerror or error}"
    return None


def warn(text: str) -> None:
    """Print a warning on the standard error stream."""
    print(f"markbook: {text}", file=sys.stderr)


def connect(
    run_dir: Path, *, step: int | None = None, tell: Callable[[str], None] = warn
) -> "DuckDBPyConnection":
    """Return a DuckDB connection with a view `ledger` over a run's shards, or one step's.

    Every shard is checked first; `tell` is called with a sentence for each damaged one, and the
    view has the others. Raises `MarkbookError` where no shard is left to read.
    """
    import duckdb

    asked = [s for s in shards(run_dir / "ledger") if step is None or s.step == step]
    if not asked:
        what = "no completions" if step is None else f"no completions of step {step}"
        raise MarkbookError(
            f"{run_dir}: its ledger holds {what}; a run writes them as each step ends."
        )
    readable = []
    for shard in asked:
        if fault := damage(shard.path):
            tell(f"{shard.path}: this shard is damaged ({fault}); the rest is read without it.")
        else:
            readable.append(shard.path)
    if not readable:
        raise MarkbookError(
            f"{run_dir}: every shard that was asked for is damaged; restore {asked[0].path} from "
            "a copy, or ask for another step."
        )
    connection = duckdb.connect()
    files = ", ".join(_literal(path) for path in readable)
    connection.execute(
        f"create view ledger as select * from read_parquet([{files}], union_by_name = true)"
    )
    return connection


def _literal(path: Path) -> str:
    """Return a path as a string of SQL that no quote ends and no wildcard widens."""
    escaped = re.sub(r"([\[*?])", r"[\1]", str(path))
    return "'" + escaped.replace("'", "''") + "'"
