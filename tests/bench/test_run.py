"""The order of things, what everyone is asked, and how answers are compared."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.contestants import Answer
from outrider.bench.data import Question
from outrider.bench.records import Contestant, Failure, parse_line
from outrider.bench.run import Run, Settings, encode, plan
from outrider.errors import OptionError
from tests.tiny import tiny

QUESTIONS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=12).map(
    lambda rows: [Question(str(at), category, ("x",) * turns) for at, (category, turns) in enumerate(rows)]
)


class Words:
    """A tokenizer whose words are numbers."""

    chat_template = None

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, tokens, skip_special_tokens):
        return " ".join(map(str, tokens))


class Says:
    """A contestant that says what it is told to, and keeps what it was asked."""

    def __init__(self, name, *answers, engine="outrider"):
        self.contestant = Contestant(name, engine)
        self.answers, self.asked = list(answers), []

    def answer(self, asked):
        self.asked.append(asked)
        said = self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return Answer(tuple(said for _ in asked.prompts), 0.1, 0.2, 1)

    def close(self):
        pass


@given(QUESTIONS, st.lists(st.integers(1, 5), min_size=1, max_size=2, unique=True), st.integers(1, 2))
def test_every_turn_of_every_question_is_asked_once_a_batch_size_and_repeat(questions, batches, repeat):
    steps = plan(questions, Settings(batches=tuple(batches), repeat=repeat))
    asked = [(q.id, step.turn, step.batch, step.repeat) for step in steps for q in step.questions]
    assert sorted(asked) == sorted(
        (question.id, turn, batch, number)
        for question in questions
        for turn in range(1, len(question.turns) + 1)
        for batch in batches
        for number in range(1, repeat + 1)
    )
    for step in steps:
        assert len(step.questions) <= step.batch
        assert len({(question.category, len(question.turns)) for question in step.questions}) == 1
    # Turns come in order: a later one needs the earlier one's answers.
    for at, step in enumerate(steps):
        if step.turn > 1:
            assert steps[at - 1].questions == step.questions and steps[at - 1].turn == step.turn - 1


def measured(ways, questions, **settings):
    file = io.StringIO()
    held = Settings(max_new_tokens=3, **settings)
    list(Run(tiny("llama"), Words(), ways, held, file).measure(plan(questions, held)))
    return [parse_line(line) for line in file.getvalue().splitlines()]


def test_a_later_turn_holds_the_baselines_answers_for_everyone():
    ways = [Says("base", (5, 6), (7,)), Says("other", (8, 9), (7,))]
    measured(ways, [Question("1", "a", ("11 12", "13"))])
    for way in ways:
        assert [asked.prompts for asked in way.asked] == [((11, 12),), ((11, 12, 5, 6, 13),)]


def test_where_texts_part_is_told_with_the_distance_of_the_logits():
    ways = [Says("base", (5, 6, 7)), Says("same", (5, 6, 7)), Says("other", (5, 9)), Says("short", (5, 6))]
    _, same, other, short = measured(ways, [Question("1", "a", ("11 12",))])
    assert (same.same_as_baseline, same.first_difference, same.logit_gap) == (True, None, None)
    assert (other.same_as_baseline, other.first_difference) == (False, 1)
    with torch.no_grad():
        logits = tiny("llama")(torch.tensor([[11, 12, 5]])).logits[0, -1]
    assert other.logit_gap == pytest.approx(float((logits[6] - logits[9]).abs()), rel=1e-4)
    assert (short.same_as_baseline, short.first_difference, short.logit_gap) == (False, 2, None)


def test_who_fails_is_written_down_and_not_asked_again_at_that_batch_size():
    ways = [Says("base", *[(5,)] * 4), Says("broken", KeyError("k"), (5,), (5,))]
    lines = measured(ways, [Question("1", "a", ("1",)), Question("2", "b", ("2",))], batches=(1, 2))
    (failure,) = [line for line in lines if isinstance(line, Failure)]
    assert (failure.contestant, failure.reason, failure.question_id, failure.batch) == (
        "broken",
        "KeyError: 'k'",
        "1",
        1,
    )
    assert len(ways[1].asked) == 3 and len(lines) == 7


def test_with_a_temperature_only_outriders_contestants_are_compared():
    ways = [
        Says("transformers", (1,), engine="transformers"),
        Says("none", (2,)),
        Says("auto", (2,)),
        Says("vllm", (2,), engine="vllm"),
    ]
    lines = measured(ways, [Question("1", "a", ("1",))], temperature=0.5)
    assert [line.same_as_baseline for line in lines] == [None, None, True, None]


def test_a_prompt_without_a_token_is_refused():
    with pytest.raises(OptionError, match="has no token"):
        encode(Words(), [" "], [], raw=False)
