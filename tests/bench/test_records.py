"""The result file: what is written is read, and what is no result is refused by its line."""

import json
from dataclasses import fields

import pytest

from outrider.bench.records import Failure, Header, Measurement, read_results, write_line
from outrider.errors import FileFormatError
from tests.bench.lines import HEADER, measurement, stats

LINES = (
    HEADER,
    measurement("plain"),
    measurement(stats=stats(num_rounds=2), same_as_baseline=False, first_difference=1, logit_gap=0.5),
    Failure("auto", "it broke", "1", 2, 1, 1),
)


def written(path):
    with open(path, "w", encoding="utf-8") as file:
        for line in LINES:
            write_line(file, line)
    return path


def test_what_is_written_is_read(tmp_path):
    results = read_results(written(tmp_path / "r.jsonl"))
    assert (results.header, *results.measurements, *results.failures) == LINES


@pytest.mark.parametrize("number", range(1, 5))
def test_a_line_without_a_field_with_another_or_with_a_wrong_one_is_named(tmp_path, number):
    path = written(tmp_path / "r.jsonl")
    lines = path.read_text().splitlines()
    held = json.loads(lines[number - 1])
    for name in [part.name for part in fields({1: Header, 4: Failure}.get(number, Measurement))]:
        without = {key: value for key, value in held.items() if key != name}
        for broken in (without, without | {name: object.__name__ + "x"}, held | {"colour": "red"}):
            if broken.get(name) == "objectx" and isinstance(held[name], str):
                continue
            lines[number - 1] = json.dumps(broken)
            path.write_text("\n".join(lines))
            with pytest.raises(FileFormatError, match=f"line {number} of"):
                read_results(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("{", "line 1"),
        ("[1]", "line 1"),
        ('{"kind": "run", "format": 99}', "its format is 99"),
        ('{"kind": "walk"}', "kind is 'walk'"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, text, message):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        read_results(path)


def test_measurements_come_after_their_header(tmp_path):
    path = written(tmp_path / "r.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]))
    with pytest.raises(FileFormatError, match="line 1 of"):
        read_results(path)
    path.write_text("\n".join([lines[0], lines[0]]))
    with pytest.raises(FileFormatError, match="line 2 of"):
        read_results(path)
    path.write_text("\n".join([lines[0], lines[1].replace('"plain"', '"nobody"')]))
    with pytest.raises(FileFormatError, match="nobody"):
        read_results(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_results(tmp_path / "none.jsonl")
