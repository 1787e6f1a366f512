"""Questions from every kind of file, and what is wrong with one in a sentence."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.data import Question, read_questions, select
from outrider.errors import FileFormatError, OptionError


def test_the_shipped_set_has_eight_of_each_category():
    questions = read_questions("builtin")
    counts = Counter(question.category for question in questions)
    assert counts == dict.fromkeys(
        ("chat", "code_edit", "code_completion", "json_extraction", "summary", "translation", "rag", "math", "multi_turn"),
        8,
    )  # fmt: skip
    assert len({question.id for question in questions}) == 72
    assert len({turn for question in questions for turn in question.turns}) == sum(
        len(question.turns) for question in questions
    )
    assert all(len(question.turns) > 1 for question in questions if question.category == "multi_turn")
    for question in questions:
        if question.category == "code_edit":
            assert 30 <= question.turns[0].count("\n") <= 80


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "question.jsonl",
            '{"question_id": 81, "category": "writing", "turns": ["a", "b"]}\n\n{"question_id": 82, "category": "rag", "turns": ["c"]}\n',
            [Question("81", "writing", ("a", "b")), Question("82", "rag", ("c",))],
        ),
        (
            "sharegpt.json",
            json.dumps(
                [
                    {
                        "id": "x1",
                        "conversations": [
                            {"from": "human", "value": "a"},
                            {"from": "gpt", "value": "no"},
                            {"from": "human", "value": "b"},
                        ],
                    },
                    {
                        "messages": [
                            {"role": "system", "content": "no"},
                            {"role": "user", "content": "c"},
                        ]
                    },
                ]
            ),
            [Question("x1", "all", ("a", "b")), Question("2", "all", ("c",))],
        ),
        (
            "prompts.jsonl",
            '{"prompt": "a\u2028b", "task_id": "T/1", "task": "code"}',
            [Question("T/1", "code", ("a\u2028b",))],
        ),
        ("lines.txt", "a\n\n{b}\n", [Question("1", "all", ("a",)), Question("3", "all", ("{b}",))]),
    ],
)
def test_every_kind_of_file(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_questions(str(tmp_path / name)) == expected


def test_a_field_by_name(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "a", "other": "b"}')
    assert read_questions(str(path), field="other")[0].turns == ("b",)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": ', "line 2 of .* is not JSON"),
        ("a.jsonl", '{"prompt": "a"}\n["b"]', "line 2 of .* is not an object"),
        ("a.jsonl", '{"colour": "red"}', "line 1 of .* has no field .* it has colour"),
        ("a.jsonl", '{"prompt": ""}', "line 1 of .* holds no text"),
        ("a.jsonl", '{"turns": ["a", 3]}', "line 1 of .* holds no text"),
        ("a.jsonl", '{"turns": []}', "line 1 of .* holds no text"),
        ("a.jsonl", '{"messages": [{"role": "system", "content": "b"}]}', "line 1 of .* holds no text"),
        ("a.jsonl", '{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}', "two questions with the id '1'"),
        ("a.json", '[{"prompt": "a"},\n{]', "line 2 of .* is not JSON"),
        ("a.json", '{"prompt": "a"}', "is not a list"),
        ("a.json", '[{"prompt": "a"}, 3]', "entry 2 of .* is not an object"),
        ("a.json", "[]", "holds no question"),
        ("a.jsonl", "\n", "holds no question"),
        ("a.txt", "", "holds no question"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(FileFormatError, match=said):
        read_questions(str(tmp_path / name))


def test_a_missing_file_and_one_that_is_no_text(tmp_path):
    with pytest.raises(OptionError, match="there is no file"):
        read_questions(str(tmp_path / "none.jsonl"))
    (tmp_path / "a.txt").write_bytes(b"ok \xff")
    with pytest.raises(FileFormatError, match="byte 3"):
        read_questions(str(tmp_path / "a.txt"))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=20), st.integers(1, 25))
def test_a_limit_is_spread_over_the_categories(categories, limit):
    questions = [Question(str(number), category, ("x",)) for number, category in enumerate(categories)]
    found = select(questions, limit=limit)
    assert len(found) == min(limit, len(questions))
    assert found == [question for question in questions if question in found]
    counts, held = Counter(q.category for q in found), Counter(categories)
    assert all(counts[name] >= min(held[name], max(counts.values()) - 1) for name in held)


def test_categories_are_chosen_by_name():
    questions = [Question("1", "a", ("x",)), Question("2", "b", ("x",))]
    assert select(questions, categories=["b"]) == questions[1:]
    with pytest.raises(OptionError, match="there are a, b"):
        select(questions, categories=["c"])
