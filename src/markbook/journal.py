"""A run's directory: who may write to it, and the line-by-line records in it.

`metrics.jsonl` and `evaluations.jsonl` are functions of the recipe alone and repeat bit for bit;
wall-clock has its own file, `timings.jsonl`.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from markbook.errors import MarkbookError
from markbook.storage import write_atomically

STREAMS = ("metrics", "timings", "evaluations")


class Journal:
    """The open records of a run, held by one process at a time."""

    def __init__(self, run_dir: Path) -> None:
        """Take the run directory for this process.

        Raises `MarkbookError` where another process holds it. The lock is the kernel's, so a
        killed process leaves none behind.
        """
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self._lock: IO[str] = (run_dir / ".lock").open("a+", encoding="utf-8")
        if not self._take():
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise MarkbookError(
                f"{run_dir}: another process (pid {holder}) is writing to this run; "
                "wait for it, stop it, or choose another directory with --out."
            )
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _take(self) -> bool:
        """Take the lock, trying twice: `markbook runs` holds it for a moment to see the state."""
        for pause_s in (0.1, 0.0):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(pause_s)
            else:
                return True
        return False

    def append(self, stream: str, record: Mapping[str, Any]) -> None:
        """Add one line to a stream and wait until it is on the disk."""
        line = json.dumps(record, allow_nan=False) + "\n"
        with (self.run_dir / f"{stream}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def read(self, stream: str) -> list[dict[str, Any]]:
        """Return a stream's whole lines; a last line that a kill cut short is left out.

        Raises `MarkbookError` where another line is damaged.
        """
        path = self.run_dir / f"{stream}.jsonl"
        if not path.exists():
            return []
        records = []
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            try:
                record = json.loads(line)
                records.append(record | {"step": int(record["step"])})
            except (ValueError, TypeError, KeyError) as error:
                raise MarkbookError(
                    f"{path}, line {number}: is damaged ({type(error).__name__}); delete that line "
                    "to go on without its step's numbers."
                ) from error
        return records

    def rewind(self, step: int) -> None:
        """Cut every stream back to what stood before that step began."""
        for stream in STREAMS:
            path = self.run_dir / f"{stream}.jsonl"
            if path.exists():
                kept = [r for r in self.read(stream) if r["step"] < step]
                text = "".join(json.dumps(r, allow_nan=False) + "\n" for r in kept)
                write_atomically(path, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the run directory go."""
        self._lock.close()
