"""Templates are proposed from wherever the text is inside of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.contract import get
from outrider.errors import FileFormatError, OptionError
from outrider.generators.rules import Rule, read_rules
from outrider.testing import check_generator, tiny_target
from outrider.types import Context
from tests.generators.helpers import decode
from tests.generators.text import byte_tokenizer

Rules = get("rules")
SCHEMA = '{"name": "<*>", "red": <*>}'


@pytest.mark.parametrize(
    ("rule", "written", "rest"),
    [
        (Rule("import numpy as np"), "import", " numpy as np"),
        (Rule("import numpy as np"), "x = 1\nimport num", "py as np"),
        (Rule("import numpy as np"), "imp", ""),
        (Rule("import numpy as np"), "import numpy as np", ""),
        (Rule("import numpy as np"), "import numpy as np\nimport", " numpy as np"),
        (Rule("(self)", after="def f"), "def f", "(self)"),
        (Rule("(self)", after="def f"), "def f(se", "lf)"),
        (Rule("(self)", after="def f"), "(se", ""),
        (Rule(SCHEMA, starts=3), '{"n', 'ame": "'),
        (Rule(SCHEMA), '{"name": "Ann"', ', "red": '),
        (Rule(SCHEMA), '{"name": "Ann", "red": 3', ""),
        (Rule(SCHEMA), '{"name": "Ann", "red": 3}', ""),
        (Rule("<*> end", after="start"), "start of it ", "end"),
    ],
)
def test_the_rest_of_a_template(rule, written, rest):
    assert rule.rest(written) == rest


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab<", min_size=2, max_size=12), cut=st.integers(1, 11), before=st.text("ab", max_size=5))
def test_the_rest_completes_the_template(text, cut, before):
    written = before + text[: min(cut, len(text) - 1)]
    rest = Rule(text, starts=1).rest(written)
    assert rest and (written + rest).endswith(text)


def test_a_known_text_comes_in_few_rounds_and_wrong_rules_lose_worth():
    tokenizer = byte_tokenizer()
    text = 'make {"name": "Ann", "red": 3}'
    prompt = tokenizer.encode(text[:7])
    output = tokenizer.encode(text)[len(prompt) :]
    assert decode(Rules([Rule(SCHEMA, starts=2)], tokenizer=tokenizer), prompt, output) < len(output) - 6
    wrong = Rules([Rule("zzzz", after="a")], tokenizer=tokenizer)
    for _ in range(3):
        decode(wrong, tokenizer.encode("ba"), tokenizer.encode("nana nana"))
    context = Context(np.array(tokenizer.encode("ba")), 1)
    assert wrong.propose(context, 3).probabilities[0] < 0.5


def test_rules_from_a_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\ntext = "(self)"\nafter = "def f"\n')
    assert read_rules(path) == [Rule("(self)", after="def f")]
    for wrong in ("text", '[[rule]]\nname = "x"\n', "x = 1", "rule = 3"):
        path.write_text(wrong)
        with pytest.raises(FileFormatError, match="no file of rules"):
            read_rules(path)
    for rules, tokenizer in ((None, 1), (["a"], None), ([], 1)):
        with pytest.raises(OptionError):
            Rules(rules, tokenizer=tokenizer)
    for wrong in (dict(text=""), dict(text="<*>a"), dict(text="a", starts=0)):
        with pytest.raises(OptionError):
            Rule(**wrong)


def test_it_owes_the_loop_nothing():
    tokenizer = byte_tokenizer()
    letters = [Rule(chr(97 + at) * 3, after=chr(97 + at)) for at in range(26)]
    check_generator(
        lambda: Rules(letters, tokenizer=tokenizer),
        tiny_target(len(tokenizer)),
        remembers=True,
        max_new_tokens=8,
    )
