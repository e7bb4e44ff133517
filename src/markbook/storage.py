"""Files that are there whole or not at all, whatever kills the process."""

import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's or a directory's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content, all or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def publish(temporary: Path, final: Path) -> None:
    """Give a finished directory its final name, once every byte of it is on the disk."""
    for path in sorted(temporary.rglob("*"), reverse=True):
        sync(path)
    sync(temporary)
    temporary.rename(final)
    sync(final.parent)


def clear(path: Path) -> None:
    """Delete a directory that may not be there."""
    if path.exists():
        shutil.rmtree(path)
