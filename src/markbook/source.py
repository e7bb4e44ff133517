"""Where a model lies: a directory, a GGUF file, or the files of a hub id."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from markbook.errors import MarkbookError, suggestion

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
LISTED = 5
"""How many names an error lists."""


class NotCachedError(MarkbookError):
    """A hub id whose files are not on this machine, where none were to be fetched."""


@dataclass(frozen=True)
class Source:
    """Where a model lies on this machine: a directory, or one GGUF file in it."""

    given: str
    """`model.path` as the user wrote it, for messages."""
    directory: Path
    gguf_file: str | None = None

    def fault(self, what: str) -> MarkbookError:
        """Return the error that says what is wrong with this source."""
        return MarkbookError(f"model.path = {self.given!r}: {what}.")


def find_source(path: str, *, download: bool = True) -> Source:
    """Return where the model lies, fetching a hub id's files first if they are not cached.

    Raises `MarkbookError` for an empty path, a file or directory that isn't there (with the
    nearest that is), a file that is no .gguf, and an id that the hub does not give. With
    `download=False` no network is used, and an id that is not cached raises `NotCachedError`.
    """
    if not path:
        raise MarkbookError(
            "model.path is empty; give --model a Hugging Face id, a directory or a .gguf file."
        )
    local = Path(path).expanduser()
    if local.is_dir():
        return Source(path, local)
    if local.is_file():
        if local.suffix.lower() == ".gguf":
            return Source(path, local.parent, local.name)
        raise MarkbookError(
            f"model.path = {path!r} is a file; give the directory that it is in, or a .gguf file."
        )
    in_a_folder = local.parent != Path() and local.parent.is_dir()
    if in_a_folder or local.suffix.lower() == ".gguf" or not _HUB_ID.fullmatch(path):
        raise MarkbookError(
            f"model.path = {path!r}: there is no such file or directory{_neighbours(local)}."
        )
    return Source(path, _snapshot(path, download))


def _models_in(folder: Path) -> list[str]:
    """Return the names in a folder that may be models: directories and GGUF files."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if (entry.is_dir() and not entry.name.startswith(".")) or entry.suffix == ".gguf"
    )


def _neighbours(path: Path) -> str:
    """Return `; did you mean ...` or what the nearest existing folder holds."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    names = _models_in(folder)
    near = suggestion(path.name, names)
    if near or not names:
        return near
    more = ", ..." if len(names) > LISTED else ""
    return f"; {folder} holds {', '.join(names[:LISTED])}{more}"


@lru_cache(maxsize=4)
def _snapshot(hub_id: str, download: bool) -> Path:
    """Return the directory of a hub model's files, without those that are not needed."""
    from huggingface_hub import snapshot_download

    def fetch(*patterns: str) -> Path:
        folder = snapshot_download(
            hub_id,
            local_files_only=not download,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
        )
        return Path(folder)

    try:
        folder = fetch("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")
        if download and not any(folder.glob("*.safetensors")):
            folder = fetch("pytorch_model*.bin")
    except (OSError, ValueError) as error:
        # Every failure of the hub is one of these: unknown, gated, offline, not cached.
        near = suggestion(hub_id, _models_in(Path()))
        if not download:
            raise NotCachedError(
                f"model.path = {hub_id!r} is not on this machine{near}."
            ) from error
        raise MarkbookError(
            f"model.path = {hub_id!r}: no such directory here{near}, and the Hugging Face hub did "
            f"not give it ({first_line(error)}); check the name, the connection and HF_TOKEN, or "
            "give a local directory."
        ) from error
    return folder


def first_line(error: BaseException) -> str:
    """Return an exception's type and the first line of what it says."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:300]}".rstrip(":. ")
