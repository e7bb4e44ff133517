"""Rows of a data file, each with its number: JSON Lines, a JSON array, CSV or Parquet.

What keeps one row from being read becomes a `Fault` of that row. What keeps the file from being
read, or leaves it unclear which rows it has, raises a `MarkbookError`.
"""

import codecs
import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from markbook.errors import MarkbookError, suggestion

FaultKind: TypeAlias = Literal[
    "blank_line",
    "not_utf8",
    "not_json",
    "not_object",
    "not_text",
    "broken_csv",
    "no_problem",
    "no_answer",
    "wrong_type",
    "duplicate_problem",
    "duplicate_id",
    "unmarkable",
    "too_long",
]
"""Why a row can't be used: it can't be read (the first six), or what it says won't do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the value of every column that it has."""

    number: int
    """The line, from 1, on which the row begins; in Parquet and JSON arrays the row, from 1."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that can't be used, and why."""

    path: str
    number: int
    """As `Row.number`."""
    kind: FaultKind
    reason: str
    """What is wrong, in words that follow on from `line 3: `."""

    def __str__(self) -> str:
        return f"{place(self.path, self.number)}: {self.reason}"


def place(path: str | Path, number: int) -> str:
    """Return where a row is found: `line 3`, or `row 3` in a file without lines of its own."""
    return f"{'row' if Path(path).suffix.lower() in ('.parquet', '.json') else 'line'} {number}"


def read_rows(path: Path) -> list[Row | Fault]:
    """Return the rows of a data file in order; the suffix says how it is read.

    Text is UTF-8, with or without a byte order mark. A blank line is a fault, except at the end
    of the file.

    Raises `MarkbookError` for a path that is no file or can't be read, an unknown suffix, an
    empty file, UTF-16 or NUL bytes, column names that occur twice, a corrupt Parquet file, a
    JSON file that is no array, and a CSV quote that runs on over several lines.
    """
    reader = READERS.get(path.suffix.lower())
    if not path.exists():
        raise MarkbookError(f"{path}: there is no such data file{_near(path)}.")
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if file.suffix.lower() in READERS)
        inside = f"; it holds {', '.join(names[:20])}" if names else ""
        raise MarkbookError(f"{path}: is a directory, where a data file is needed{inside}.")
    if reader is None:
        raise MarkbookError(
            f"{path}: can't tell what kind of data file this is; its name must end in "
            f"{', '.join(READERS)}."
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MarkbookError(f"{path}: can't be read: {error.strerror or error}.") from None
    if not data:
        raise MarkbookError(f"{path}: is empty; give a file with at least one problem.")
    if reader is not _read_parquet:
        _check_text(path, data)
    rows = list(reader(path, data))
    if not rows:
        raise MarkbookError(f"{path}: holds no rows; give a file with at least one problem.")
    return rows


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a directory {path.parent})"
    return suggestion(path.name, sorted(file.name for file in path.parent.iterdir()))


def _check_text(path: Path, data: bytes) -> None:
    """Raise where the bytes, as a whole, are no UTF-8 text."""
    marks = {codecs.BOM_UTF32_LE: 32, codecs.BOM_UTF32_BE: 32}
    marks |= {codecs.BOM_UTF16_LE: 16, codecs.BOM_UTF16_BE: 16}  # the shorter mark comes last
    bits = next((bits for mark, bits in marks.items() if data.startswith(mark)), None)
    if bits is not None:
        raise MarkbookError(
            f"{path}: is UTF-{bits} text (so its first bytes say); save it as UTF-8."
        )
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise MarkbookError(f"{path}: is empty; give a file with at least one problem.")
    nul = data.find(b"\0")
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise MarkbookError(
            f"{path}: holds a NUL byte (line {line}, byte {nul}), so it is not UTF-8 text; "
            "save it as UTF-8, or give it the suffix of what it is."
        )


def _body(data: bytes) -> tuple[bytes, int]:
    """Return what follows a UTF-8 byte order mark, and how many bytes that mark takes."""
    body = data.removeprefix(codecs.BOM_UTF8)
    return body, len(data) - len(body)


def _not_utf8(path: Path, number: int, raw: bytes, start: int) -> Fault | None:
    """Return the fault of bytes, found `start` bytes into the file, that are not UTF-8."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, offset = raw[error.start], start + error.start
        reason = f"byte 0x{byte:02X} (byte {offset} of the file) is not UTF-8; save it as UTF-8"
        return Fault(str(path), number, "not_utf8", reason)
    return None


class _TwiceError(ValueError):
    """A key that a JSON object gives two values, of which a parser would drop the first."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _TwiceError(f"the key {twice!r} occurs twice in one object")
    return made


def _parse(text: str) -> tuple[Any, str]:
    """Return the value of a JSON text and an empty string, or None and what is wrong with it."""
    try:
        return json.loads(text, object_pairs_hook=_once), ""
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column" if error.lineno > 1 else "column"
        return None, f"{error.msg} at {where} {error.colno}"
    except RecursionError:
        return None, "it is nested too deep"
    except ValueError as error:  # _once, or a number of thousands of digits
        return None, str(error)


def _json_row(path: Path, number: int, value: Any) -> Row | Fault:
    if not isinstance(value, dict):
        reason = f"is a JSON {_json_type(value)} where an object {{...}} is needed"
        return Fault(str(path), number, "not_object", reason)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        reason = f"holds the escape \\u{ord(half):04x} alone, half of a pair, which is no character"
        return Fault(str(path), number, "not_text", reason)
    return Row(number, value)


def _json_type(value: Any) -> str:
    names = {list: "array", str: "string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "number")


def _read_json_lines(path: Path, data: bytes) -> Iterator[Row | Fault]:
    body, start = _body(data)
    for number, raw in enumerate(body.rstrip().split(b"\n"), start=1):
        fault = _not_utf8(path, number, raw, start)
        start += len(raw) + 1
        if fault is not None:
            yield fault
        elif not raw.strip():
            yield Fault(str(path), number, "blank_line", "is blank")
        else:
            value, wrong = _parse(raw.decode("utf-8"))
            if wrong:
                yield Fault(str(path), number, "not_json", f"is not valid JSON: {wrong}")
            else:
                yield _json_row(path, number, value)


def _read_json_array(path: Path, data: bytes) -> Iterator[Row | Fault]:
    body, start = _body(data)
    fault = _not_utf8(path, 1, body, start)
    if fault is not None:
        raise MarkbookError(f"{path}: {fault.reason}.")
    value, wrong = _parse(body.decode("utf-8"))
    if wrong:
        advice = "; if it has one object a line, name it .jsonl" if "Extra data" in wrong else ""
        raise MarkbookError(f"{path}: is not valid JSON: {wrong}{advice}.")
    if not isinstance(value, list):
        raise MarkbookError(
            f"{path}: is a JSON {'object' if isinstance(value, dict) else _json_type(value)} where "
            "an array of objects [{...}, ...] is needed."
        )
    for number, item in enumerate(value, start=1):
        yield _json_row(path, number, item)


def _read_csv(path: Path, data: bytes) -> Iterator[Row | Fault]:
    records = _csv_records(path, data)
    _, header = records[0]
    if isinstance(header, Fault):
        raise MarkbookError(f"{path}: {header}, and this line must name the columns.")
    _check_names(path, header)
    for number, record in records[1:]:
        if isinstance(record, Fault):
            yield record
        elif len(record) != len(header):
            reason = f"has {len(record)} values where the first line names {len(header)} columns"
            yield Fault(str(path), number, "broken_csv", reason)
        else:
            yield Row(number, dict(zip(header, record, strict=True)))


def _csv_records(path: Path, data: bytes) -> list[tuple[int, list[str] | Fault]]:
    """Return each record with the number of the line on which it begins."""
    body, start = _body(data)
    lines = body.splitlines(keepends=True)
    while not lines[-1].strip():
        lines.pop()
    # Bytes that are not UTF-8 become surrogates here, so that only their own rows are at fault.
    reader = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # a setting of the whole process, so it is put back
    try:
        records: list[tuple[int, list[str] | Fault]] = []
        while reader.line_num < len(lines):
            first = reader.line_num
            record = _csv_record(path, reader)
            raw = b"".join(lines[first : reader.line_num])
            if not raw.strip():
                record = Fault(str(path), first + 1, "blank_line", "is blank")
            records.append((first + 1, _not_utf8(path, first + 1, raw, start) or record))
            start += len(raw)
        return records
    finally:
        csv.field_size_limit(limit)


def _csv_record(path: Path, reader: Any) -> list[str] | Fault:
    """Return the next record of a `csv.reader`, or what is wrong with its quotes."""
    first = reader.line_num + 1
    try:
        record: list[str] = next(reader)
    except csv.Error as error:
        if reader.line_num > first:
            raise MarkbookError(
                f"{path}: a quoted value that opens on line {first} runs on to line "
                f"{reader.line_num} and ends wrongly there ({error}), so it can't be told which "
                "rows these lines hold; close the quote, and write a quote inside a value twice."
            ) from None
        return Fault(str(path), first, "broken_csv", f"is not valid CSV: {error}")
    return record


def _check_names(path: Path, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise MarkbookError(f"{path}: has more than one column {twice[0]!r}; rename all but one.")


def _read_parquet(path: Path, data: bytes) -> Iterator[Row | Fault]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except (pa.ArrowException, OSError) as error:
        cause = str(error).splitlines()[0].rstrip(".")
        raise MarkbookError(
            f"{path}: can't be read as Parquet, it may be cut off: {cause}."
        ) from None
    _check_names(path, table.column_names)
    table = _with_short_floats(table)
    for number in range(1, table.num_rows + 1):
        try:
            (values,) = table.slice(number - 1, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield Fault(str(path), number, "not_utf8", f"holds text that is not UTF-8: {error}")
            continue
        yield Row(number, values)


def _with_short_floats(table: Any) -> Any:
    """Return the Arrow table with 16 and 32 bit floats as the shortest 64 bit ones.

    Such a column holds 0.1 as 0.10000000149011612; its shortest decimal that means the same
    32 bits is 0.1, which is what was meant as an answer.
    """
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if pa.types.is_float16(field.type) or pa.types.is_float32(field.type):
            narrow = field.type.to_pandas_dtype()
            values = (
                None if value is None else float(str(narrow(value)))
                for value in table.column(index).to_pylist()
            )
            table = table.set_column(index, field.name, pa.array(values, pa.float64()))
    return table


READERS: Mapping[str, Callable[[Path, bytes], Iterator[Row | Fault]]] = {
    ".jsonl": _read_json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".json": _read_json_array,
}
"""How a file is read, by its suffix."""
