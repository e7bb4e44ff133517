import csv
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from markbook.errors import MarkbookError
from markbook.records import Problem, Prompt
from markbook.seeding import seed_of
from markbook.tasks.file import Fields, FileTask, list_faults, read_problems
from markbook.tasks.rows import Fault, Row, read_rows
from markbook.verify import MarkingRules

RULES = MarkingRules()
GOOD = {"problem": "What is 2 + 3?", "answer": "5"}


def read(path: Path, **settings_: Any) -> tuple[list[Problem], list[Fault]]:
    return read_problems(path, rules=RULES, **settings_)


def write(path: Path, *lines: Mapping[str, Any] | str) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    return lambda *lines: write(tmp_path / "set.jsonl", *lines)


def refusal(path: Path, **fields: str) -> str:
    with pytest.raises(MarkbookError) as raised:
        read(path, **fields)
    return str(raised.value)


# --- what is read -------------------------------------------------------------------------------


def test_jsonl_becomes_problems_with_ids_answers_and_metadata(jsonl: Callable[..., Path]) -> None:
    path = jsonl(
        {"id": "a", "problem": "1+1?", "answer": "2", "level": 3, "tests": {"nums": [1]}},
        {"id": 7, "problem": "1+2?", "answer": 3},
        {"problem": "1+3?", "answer": "4"},
    )
    problems, faults = read(path)
    assert faults == []
    assert problems == [
        Problem("a", "1+1?", "2", {"level": 3, "tests": {"nums": [1]}}),
        Problem("7", "1+2?", "3", {}),
        Problem("set-3", "1+3?", "4", {}),
    ]


def test_other_field_names(jsonl: Callable[..., Path]) -> None:
    path = jsonl({"q": "1+1?", "gold": "2", "key": "k", "id": "not this"})
    problems, _ = read(path, problem_field="q", answer_field="gold", id_field="key")
    assert problems == [Problem("k", "1+1?", "2", {"id": "not this"})]


def test_an_empty_id_field_takes_line_numbers(jsonl: Callable[..., Path]) -> None:
    problems, _ = read(jsonl({"id": 0, **GOOD, "": "index"}), id_field="")
    assert problems == [Problem("set-1", GOOD["problem"], "5", {"id": 0, "": "index"})]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("42", "42"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("-0.1", "-0.1"),
        ("2.50", "2.5"),
        ('" 7 "', " 7 "),
        ('"007"', "007"),
    ],
)
def test_numbers_as_answers_become_text(
    jsonl: Callable[..., Path], written: str, text: str
) -> None:
    problems, faults = read(jsonl(f'{{"problem": "p", "answer": {written}}}'))
    assert faults == []
    assert problems[0].answer == text


def test_byte_order_mark_and_windows_line_ends_and_blank_end(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    body = json.dumps(GOOD).encode() + b"\r\n" + '{"problem": "é?", "answer": 1}'.encode()
    path.write_bytes(b"\xef\xbb\xbf" + body + b"\r\n\r\n  \n")
    problems, faults = read(path)
    assert [p.prompt for p in problems] == [GOOD["problem"], "é?"]
    assert faults == []


def test_line_separators_inside_text_are_not_line_ends(jsonl: Callable[..., Path]) -> None:
    path = jsonl('{"problem": "a\u2028b\u0085c", "answer": "1"}', "{}")
    problems, faults = read(path)
    assert problems[0].prompt == "a\u2028b\u0085c"
    assert [(f.number, f.kind) for f in faults] == [(2, "no_problem")]


def test_chat_messages(jsonl: Callable[..., Path]) -> None:
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    problems, faults = read(jsonl({"problem": chat, "answer": "2"}))
    assert faults == []
    assert list(problems[0].prompt) == chat


def test_json_array(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps([GOOD, 3, {"problem": "p"}]), encoding="utf-8")
    problems, faults = read(path)
    assert [p.id for p in problems] == ["set-1"]
    assert [str(f) for f in faults] == [
        "row 2: is a JSON number where an object {...} is needed",
        "row 3: answer is missing",
    ]


def test_csv_counts_lines_through_quoted_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_bytes(
        b"problem,answer,note\r\n"
        b'"one\r\ntwo ""quoted"", three",5,x\r\n'  # lines 2 and 3
        b"four,,y\r\n"  # line 4
        b"\r\n"  # line 5
        b"five,6\r\n"  # line 6
        b'"a"b,1,z\r\n'  # line 7
        b"six,7,\xe9\r\n"  # line 8
        b"seven,8,w\r\n"  # line 9
        b"\r\n"
    )
    problems, faults = read(path)
    assert problems == [
        Problem("set-2", 'one\r\ntwo "quoted", three', "5", {"note": "x"}),
        Problem("set-9", "seven", "8", {"note": "w"}),
    ]
    assert [(f.number, f.kind) for f in faults] == [
        (4, "no_answer"),
        (5, "blank_line"),
        (6, "broken_csv"),
        (7, "broken_csv"),
        (8, "not_utf8"),
    ]
    byte = path.read_bytes().index(b"\xe9")
    assert f"byte 0xE9 (byte {byte} of the file)" in faults[4].reason
    assert "2 values where the first line names 3 columns" in faults[2].reason


def test_csv_values_longer_than_the_modules_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "set.csv", "problem,answer", "x" * 200_000 + ",1")
    problems, _ = read(path)
    assert len(problems[0].prompt) == 200_000
    assert csv.field_size_limit() == 131_072  # the limit of the process is as it was


def test_parquet_types(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    chat = [{"role": "user", "content": "chat?", "name": None}]
    answers: Sequence[tuple[pa.DataType, Any, str]] = [
        (pa.int64(), 2**62, str(2**62)),
        (pa.float64(), 0.1, "0.1"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float16(), 0.1, "0.1"),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (pa.decimal128(12, 10), Decimal("1E-10"), "0.0000000001"),
        (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
        (pa.large_string(), "y", "y"),
    ]
    for kind, value, text in answers:
        table = {"problem": pa.array([chat]), "answer": pa.array([value]).cast(kind)}
        pq.write_table(pa.table(table), path)
        problems, faults = read(path)
        assert faults == []
        assert problems[0].answer == text
        assert problems[0].prompt == ({"role": "user", "content": "chat?"},)


def test_parquet_faults_have_row_numbers(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    bad_text = pa.Array.from_buffers(
        pa.string(), 4, pa.array([b"a", b"\xff", b"c", b"d"]).buffers()
    )
    pq.write_table(pa.table({"problem": bad_text, "answer": pa.array([1, 2, None, 4])}), path)
    problems, faults = read(path)
    assert [p.id for p in problems] == ["set-1", "set-4"]
    assert [(f.number, f.kind) for f in faults] == [(2, "not_utf8"), (3, "no_answer")]
    assert str(faults[1]) == "row 3: answer is missing"


# --- faults of rows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("", "blank_line", "is blank"),
        ("{'problem': 1}", "not_json", "is not valid JSON: Expecting property name"),
        ('{"problem": "p", "answer": "1"', "not_json", "is not valid JSON"),
        ("[" * 100_000, "not_json", "nested too deep"),
        ('{"problem": "p", "answer": ' + "9" * 5000 + "}", "not_json", "4300"),
        ('{"problem": "p", "answer": 1, "answer": 2}', "not_json", "the key 'answer' occurs twice"),
        ("[1, 2]", "not_object", "is a JSON array"),
        ('"text"', "not_object", "is a JSON string"),
        ("null", "not_object", "is a JSON null"),
        ("true", "not_object", "is a JSON true or false"),
        ('{"problem": "p\\ud800", "answer": "1"}', "not_text", "the escape \\ud800 alone"),
        ('{"problem": "p", "answer": "1", "x": "\\udfff"}', "not_text", "the escape \\udfff"),
        ('{"answer": "1"}', "no_problem", "problem is missing"),
        ('{"problem": null, "answer": "1"}', "no_problem", "problem is missing"),
        ('{"problem": " \\n", "answer": "1"}', "no_problem", "problem is empty"),
        ('{"problem": [], "answer": "1"}', "no_problem", "problem is empty"),
        ('{"problem": 5, "answer": "1"}', "wrong_type", "problem is 5, where text"),
        ('{"problem": {"a": 1}, "answer": "1"}', "wrong_type", "problem is {'a': 1}"),
        ('{"problem": ["p"], "answer": "1"}', "wrong_type", "problem[0] is 'p'"),
        (
            '{"problem": [{"role": "user"}], "answer": "1"}',
            "wrong_type",
            "problem[0] must have role and content alone, but has role",
        ),
        (
            '{"problem": [{"role": "user", "content": "p", "name": "n"}], "answer": "1"}',
            "wrong_type",
            "but has role, content, name",
        ),
        (
            '{"problem": [{"role": "human", "content": "p"}], "answer": "1"}',
            "wrong_type",
            "problem[0] has the role 'human', not system, user, assistant",
        ),
        (
            '{"problem": [{"role": ["user"], "content": "p"}], "answer": "1"}',
            "wrong_type",
            "problem[0] has the role ['user']",
        ),
        (
            '{"problem": [{"role": "user", "content": ["p"]}], "answer": "1"}',
            "wrong_type",
            "problem[0] has content ['p'], not text",
        ),
        (
            '{"problem": [{"role": "user", "content": " "}], "answer": "1"}',
            "no_problem",
            "problem[0] is empty",
        ),
        (
            '{"problem": [{"role": "assistant", "content": "p"}], "answer": "1"}',
            "wrong_type",
            "ends with a message of 'assistant', not of 'user'",
        ),
        ('{"problem": "p"}', "no_answer", "answer is missing"),
        ('{"problem": "p", "answer": null}', "no_answer", "answer is missing"),
        ('{"problem": "p", "answer": "  "}', "no_answer", "answer is empty"),
        ('{"problem": "p", "answer": ["1"]}', "wrong_type", "answer is ['1'], where text"),
        ('{"problem": "p", "answer": {}}', "wrong_type", "answer is {}"),
        ('{"problem": "p", "answer": true}', "wrong_type", "answer is True"),
        ('{"problem": "p", "answer": NaN}', "wrong_type", "answer is nan"),
        ('{"problem": "p", "answer": 1e999}', "wrong_type", "answer is inf"),
        ('{"problem": "p", "answer": "1", "id": 1.5}', "wrong_type", "id is 1.5"),
        ('{"problem": "p", "answer": "1", "id": false}', "wrong_type", "id is False"),
        (
            '{"problem": "What is  2 + 3?\\n", "answer": "5 "}',
            "duplicate_problem",
            "repeats the problem of line 1",
        ),
        (
            '{"problem": "What is 2 + 3?", "answer": "6"}',
            "duplicate_problem",
            "repeats the problem of line 1 with another answer ('6', there '5')",
        ),
        (
            '{"problem": "p", "answer": "1", "id": "set-1"}',
            "duplicate_id",
            "has the id 'set-1' of line 1",
        ),
    ],
)
def test_faults(jsonl: Callable[..., Path], line: str, kind: str, words: str) -> None:
    path = jsonl(GOOD, line, {"problem": "last", "answer": "9"})
    problems, (fault,) = read(path)
    assert [p.id for p in problems] == ["set-1", "set-3"]
    assert (fault.path, fault.number, fault.kind) == (str(path), 2, kind)
    assert words in fault.reason


def test_a_duplicate_of_an_unusable_row_is_no_duplicate(jsonl: Callable[..., Path]) -> None:
    path = jsonl({"problem": "p"}, {"problem": "p", "answer": "1"}, {"problem": "p", "answer": "1"})
    problems, faults = read(path)
    assert [p.id for p in problems] == ["set-2"]
    assert [str(f) for f in faults] == [
        "line 1: answer is missing",
        "line 3: repeats the problem of line 2",
    ]


def test_duplicate_chats_and_ids_of_two_types(jsonl: Callable[..., Path]) -> None:
    chat = [{"role": "user", "content": "p"}]
    path = jsonl(
        {"id": 1, "problem": chat, "answer": "1"},
        {"id": 2, "problem": chat, "answer": "1"},
        {"id": "1", "problem": "q", "answer": "1"},
        {"id": 3, "problem": [{"role": "system", "content": "s"}, *chat], "answer": "1"},
    )
    problems, faults = read(path)
    assert [p.id for p in problems] == ["1", "3"]
    assert [f.kind for f in faults] == ["duplicate_problem", "duplicate_id"]


def test_not_utf8_names_the_byte_and_spares_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    first = json.dumps(GOOD).encode() + b"\n"
    path.write_bytes(b"\xef\xbb\xbf" + first + b'{"problem": "caf\xe9", "answer": "1"}\n')
    problems, (fault,) = read(path)
    assert len(problems) == 1
    assert (fault.number, fault.kind) == (2, "not_utf8")
    assert f"byte 0xE9 (byte {3 + len(first) + 16} of the file)" in fault.reason


def test_gold_that_cannot_be_marked(
    jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def can_mark(gold: str, rules: MarkingRules) -> str | None:
        assert rules is RULES
        return "it is a poem" if gold == "roses" else None

    monkeypatch.setattr("markbook.tasks.file.can_mark", can_mark)
    problems, (fault,) = read(jsonl(GOOD, {"problem": "p", "answer": "roses"}))
    assert len(problems) == 1
    assert fault.kind == "unmarkable"
    assert str(fault) == "line 2: the answer 'roses' can't be marked: it is a poem"


def test_gold_that_the_rules_cannot_mark(jsonl: Callable[..., Path]) -> None:
    path = jsonl(
        GOOD, {"problem": "p", "answer": "\\frac{1}{"}, {"problem": "q", "answer": "</answer>"}
    )
    problems, faults = read(path)
    assert len(problems) == 1
    assert [(f.number, f.kind) for f in faults] == [(2, "unmarkable"), (3, "unmarkable")]


def test_prompt_too_long(jsonl: Callable[..., Path]) -> None:
    asked: list[Prompt] = []

    def fits(prompt: Prompt) -> str | None:
        asked.append(prompt)
        return "it has 900 tokens and the context 512" if prompt == "long" else None

    problems, (fault,) = read(jsonl(GOOD, {"problem": "long", "answer": "1"}), fits=fits)
    assert len(problems) == 1
    assert asked == [GOOD["problem"], "long"]
    assert (fault.number, fault.kind) == (2, "too_long")
    assert fault.reason == "the problem does not fit: it has 900 tokens and the context 512"


# --- faults of files ----------------------------------------------------------------------------


def test_missing_file_names_the_nearest(jsonl: Callable[..., Path]) -> None:
    path = jsonl(GOOD)
    message = refusal(path.with_name("sets.jsonl"))
    assert "no such data file; did you mean 'set.jsonl'?" in message
    assert "nor a directory" in refusal(path.parent / "no" / "set.jsonl")


def test_a_directory_lists_its_data_files(jsonl: Callable[..., Path]) -> None:
    path = jsonl(GOOD)
    assert "is a directory, where a data file is needed; it holds set.jsonl." in refusal(
        path.parent
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("set.txt", b"x", "must end in .jsonl, .csv, .parquet, .json"),
        ("set.jsonl", b"", "is empty"),
        ("set.jsonl", b"\xef\xbb\xbf \n\n", "is empty"),
        ("set.csv", b"\n", "is empty"),
        ("set.parquet", b"", "is empty"),
        ("set.json", b"[]", "holds no rows"),
        ("set.csv", b"problem,answer\n", "holds no rows"),
        ("set.jsonl", json.dumps(GOOD).encode("utf-16"), "is UTF-16 text"),
        ("set.jsonl", b"\xfe\xff" + json.dumps(GOOD).encode("utf-16-be"), "is UTF-16 text"),
        ("set.csv", "problem,answer".encode("utf-32"), "is UTF-32 text"),
        ("set.jsonl", b"{}\n\n{\0}", "holds a NUL byte (line 3, byte 5)"),
        ("set.csv", b"\0", "holds a NUL byte (line 1, byte 0)"),
        ("set.csv", b"\n\0", "holds a NUL byte (line 2, byte 1)"),
        ("set.jsonl", json.dumps(GOOD).encode("utf-16-le"), "holds a NUL byte (line 1, byte 1)"),
        ("set.csv", b"problem,answer,answer\np,1,2\n", "more than one column 'answer'"),
        ("set.csv", b"probl\xe9m,answer\np,1\n", "line 1: byte 0xE9 (byte 5 of the file)"),
        ("set.csv", b"\nproblem,answer\np,1\n", "line 1: is blank"),
        ("set.csv", b"problem;answer\np;1\n", "separated by ';', where a comma is needed"),
        ("set.csv", b'problem,answer\np,1\n"q,1\nr,2\n', "opens on line 3 runs on to line 4"),
        ("set.parquet", b"PAR1 and then nothing", "can't be read as Parquet"),
        ("set.json", b'{"problem": 1}\n{"problem": 2}', "name it .jsonl"),
        ("set.json", b'[{"problem": 1},\n {"answer" 2}]', "delimiter at line 2 column 12."),
        ("set.json", b'[{"problem" 1}]', "delimiter at column 13."),
        ("set.json", b'{"data": []}', "is a JSON object where an array"),
        ("set.json", b"7", "is a JSON number where an array"),
        ("set.json", b'["\xff"]', "byte 0xFF (byte 2 of the file) is not UTF-8"),
        ("set.jsonl", b'{"question": "q", "answer": 1}', "has no column 'problem'"),
        ("set.jsonl", b'{"problems": "q", "answer": 1}', "did you mean 'problems'?"),
        ("set.jsonl", b'{"problem": "q", "gold": 1}', "--data.answer-field"),
        (
            "set.jsonl",
            b'{"problem": "q", "answer": null}\n[]',
            "line 1: answer is missing\n  line 2: is a JSON",
        ),
        ("set.jsonl", b"garbage", "That is every row; none is left to use."),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    message = refusal(path)
    assert words in message
    assert str(path) in message


def test_columns_that_are_missing_or_the_same(jsonl: Callable[..., Path]) -> None:
    path = jsonl({"question": "q", "solution": "s", "answer": "1"})
    message = refusal(path)
    assert "its columns are 'question', 'solution', 'answer'" in message
    assert "--data.problem-field" in message
    assert "has no column 'key'" in refusal(path, problem_field="question", id_field="key")
    assert "must be different columns" in refusal(
        path, problem_field="answer", answer_field="answer"
    )
    assert "must be different columns" in refusal(
        path, problem_field="question", id_field="question"
    )


def test_at_most_twenty_columns_are_listed(tmp_path: Path) -> None:
    def message(count: int) -> str:
        names = [f"c{k};" for k in range(count)]
        return refusal(write(tmp_path / "set.csv", ",".join(names), ",".join(names)))

    assert message(20).endswith("'c18;', 'c19;': name the one to take with --data.problem-field.")
    assert "'c19;' and 3 more: name" in message(23)


def test_a_parquet_file_cut_off_or_with_equal_names(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"problem": ["p"], "answer": ["1"]}), path)
    path.write_bytes(path.read_bytes()[:-9])
    assert "can't be read as Parquet" in refusal(path)
    twice = pa.Table.from_arrays([pa.array(["p"]), pa.array(["q"])], names=["problem", "problem"])
    pq.write_table(twice, path)
    assert "more than one column 'problem'" in refusal(path)


# --- properties ---------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ROWS = st.lists(
    st.fixed_dictionaries({"problem": TEXT, "answer": TEXT, "note": TEXT}), min_size=1, max_size=6
)
FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@FILES
@given(rows=ROWS)
def test_every_format_gives_the_same_rows(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    write(tmp_path / "set.jsonl", *rows)
    (tmp_path / "set.json").write_text(json.dumps(rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "set.parquet")
    with (tmp_path / "set.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    for suffix in ("jsonl", "json", "parquet", "csv"):
        found = read_rows(tmp_path / f"set.{suffix}")
        assert [row.values for row in found if isinstance(row, Row)] == rows


@FILES
@given(rows=ROWS)
def test_no_row_is_lost(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    path = write(tmp_path / "set.jsonl", *rows, GOOD)
    problems, faults = read(path)
    assert len(problems) + len(faults) == len(rows) + 1
    numbers = [int(p.id.removeprefix("set-")) for p in problems] + [f.number for f in faults]
    assert sorted(numbers) == list(range(1, len(rows) + 2))
    assert len({p.id for p in problems}) == len(problems)


@FILES
@given(
    suffix=st.sampled_from(["jsonl", "csv", "json", "parquet"]),
    content=st.binary(max_size=60)
    | st.text('{}[]",:\r\n ab1\\u', max_size=60).map(str.encode)
    | st.text('",\r\nab', max_size=40).map(lambda text: b"problem,answer\n" + text.encode()),
)
def test_garbage_is_refused_or_listed_and_nothing_else(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    path = tmp_path / f"set.{suffix}"
    path.write_bytes(content)
    try:
        problems, faults = read(path)
    except MarkbookError as error:
        assert str(path) in str(error)  # noqa: PT017  # either outcome is right
    else:
        assert problems
        assert len(problems) + len(faults) == len(read_rows(path))


# --- the task -----------------------------------------------------------------------------------


def many(count: int) -> list[dict[str, str]]:
    return [{"id": f"n{k}", "problem": f"{k} + 1?", "answer": str(k + 1)} for k in range(count)]


def test_a_file_task_has_its_rows_in_order_as_train(jsonl: Callable[..., Path]) -> None:
    task = FileTask(jsonl(*many(5)), rules=RULES)
    assert task.name == "set"
    assert task.rules is RULES
    assert [p.id for p in task.problems("train")] == ["n0", "n1", "n2", "n3", "n4"]
    assert list(task.problems("test")) == list(task.problems("other")) == []
    assert task.faults == ()


def test_refuse_lists_twenty_faults_and_says_how_to_go_on(jsonl: Callable[..., Path]) -> None:
    path = jsonl(*many(3), *[{"problem": f"p{k}"} for k in range(25)])
    with pytest.raises(MarkbookError) as raised:
        FileTask(path)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{path}: 25 rows can't be used:"
    assert lines[1] == "  line 4: answer is missing"
    assert lines[20] == "  line 23: answer is missing"
    assert lines[21] == "  and 5 more"
    assert "--data.on-fault skip" in lines[22]
    assert len(lines) == 23


def test_twenty_faults_are_all(jsonl: Callable[..., Path]) -> None:
    path = jsonl(*many(1), *[{"problem": f"p{k}"} for k in range(20)])
    listing = list_faults(FileTask(path, on_fault="skip").faults).splitlines()
    assert len(listing) == 21
    assert listing[20] == "  line 21: answer is missing"


def test_skip_keeps_the_good_rows_and_the_faults(jsonl: Callable[..., Path]) -> None:
    task = FileTask(jsonl(*many(2), {"problem": "p"}), on_fault="skip")
    assert [p.id for p in task.problems("train")] == ["n0", "n1"]
    assert [(f.number, f.kind) for f in task.faults] == [(3, "no_answer")]


def test_a_held_out_file(tmp_path: Path) -> None:
    train = write(tmp_path / "set.jsonl", {"problem": "a", "answer": "1"})
    (tmp_path / "held").mkdir()
    test = write(
        tmp_path / "held" / "set.jsonl",
        {"problem": "b", "answer": "1"},
        {"problem": "a", "answer": "2"},
        {"id": "set-1", "problem": "c", "answer": "1"},
    )
    task = FileTask(train, test_path=test, on_fault="skip")
    assert [p.id for p in task.problems("train")] == ["set-1"]
    assert [p.id for p in task.problems("test")] == ["set-test-1"]
    assert [str(f) for f in task.faults] == [
        f"line 2: repeats the problem of line 1 of {train} with another answer ('2', there '1')",
        f"line 3: has the id 'set-1' of line 1 of {train}; give each row its own, or take line "
        "numbers with --data.id-field ''",
    ]
    with pytest.raises(MarkbookError, match="2 rows can't be used"):
        FileTask(train, test_path=test)


def test_faults_of_both_files_are_listed(tmp_path: Path) -> None:
    train = write(tmp_path / "set.jsonl", {"problem": "a", "answer": "1"}, "x")
    test = write(tmp_path / "test.jsonl", {"problem": "b", "answer": "1"}, "y", "z")
    faults = FileTask(train, test_path=test, on_fault="skip").faults
    listing = list_faults(faults).splitlines()
    assert [listing[0], listing[2]] == [
        f"{train}: 1 row can't be used:",
        f"{test}: 2 rows can't be used:",
    ]


def test_held_out_share_is_a_property_of_the_id(jsonl: Callable[..., Path]) -> None:
    def held_out(count: int, share: float) -> set[str]:
        task = FileTask(jsonl(*many(count)), test_share=share)
        train, test = ({p.id for p in task.problems(split)} for split in ("train", "test"))
        assert train | test == {f"n{k}" for k in range(count)}
        assert not train & test
        return test

    test = held_out(2000, 0.25)
    # 2000 draws with probability 0.25: mean 500, standard deviation 19.4; five of them are 97.
    assert abs(len(test) - 500) < 97
    assert {f"n{k}" for k in range(1000)} & test == held_out(1000, 0.25)
    assert held_out(1000, 0.1) < test
    assert all(seed_of("held out", name) / 2**63 < 0.25 for name in test)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"test_share": 0.6}, "data.test_share = 0.6 must be between 0 and 0.5"),
        ({"test_share": float("nan")}, "must be between 0 and 0.5"),
        ({"test_share": 0.1, "test_path": "x.jsonl"}, "both hold out problems"),
        ({"test_share": 1e-9}, "leaves 3 to train on and 0 held out"),
        ({"test_path": "no.jsonl"}, "no such data file"),
    ],
)
def test_held_out_settings(
    jsonl: Callable[..., Path], settings_: dict[str, Any], words: str
) -> None:
    with pytest.raises(MarkbookError, match=words):
        FileTask(jsonl(*many(3)), **settings_)


def test_fields_reach_both_files(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", {"q": "a", "gold": "1"})
    test = write(tmp_path / "b.jsonl", {"q": "b", "gold": "2"})
    task = FileTask(train, fields=Fields("q", "gold"), test_path=test)
    assert [p.answer for p in task.problems("test")] == ["2"]
