"""Writes docs/models.md from the tests of this folder and of the caches, which it runs: `python -m tests.target.models_table`."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import transformers

from outrider.target.recurrent import reason_against
from tests.target.architectures import ALIBI, ENCODER_DECODER, FULL, RECURRENT, WINDOWED, tiny

COLUMNS = {
    "cache": {
        "test_logits_are_those_of_dynamic_cache_through_rollbacks",
        "test_generate_gives_the_same_text",
    },
    "tree": {"test_tree_logits_are_those_of_its_paths"},
    "batch": {"test_each_row_reads_as_that_row_alone", "test_encoder_decoder_rows_are_those_rows_alone"},
    "state": {"test_greedy_text_is_that_of_plain_decoding"},
}
KINDS = {
    "full attention": FULL,
    "window or chunks": WINDOWED,
    "ALiBi": ALIBI,
    "encoder-decoder": ENCODER_DECODER,
    "recurrent or hybrid": RECURRENT,
}
HEAD = """# Which models, and what was proven for each

Made by `python -m tests.target.models_table` from tests that ran, with transformers {version}, in float32, on
tiny models of random weights. Do not edit it.

- **cache**: on the in-place cache, logits through rejected candidates and the text of `generate()` equal those
  on transformers' DynamicCache, bit for bit, with sdpa (where the model has it) and eager. Windows of 16 tokens,
  passed more than once, with rejected candidates on their edge.
- **tree**: a forward over a tree gives the logits of forwards over its paths, round after round.
- **batch**: rows of different prompt lengths accept different numbers of candidates and end at different times;
  each reads as that row alone. Holes are compacted on the way.
- **state**: chains of candidates on recurrent layers, by the state of the last commit; the text is plain decoding's.

These are proofs of the parts (`target.cache`, `masks`, `batch`, `recurrent`) in loops of the tests' own; what
`generate()` makes of them for a model is decided in `target.forward`.

"yes" is proven, "-" does not apply, anything else says why not. A chain of candidates works wherever one of
*cache* and *state* says yes.

| architecture | kind | cache | tree | batch | state |
| --- | --- | --- | --- | --- | --- |
"""


class Outcomes:
    """A pytest plugin that keeps, for each test function and architecture, whether all its cases passed."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], list[bool]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = re.search(r"::(\w+)\[(.+)\]$", report.nodeid)
        if found and (report.when == "call" or report.failed):
            for name in re.split("-", found[2]):
                self.passed[found[1], name].append(report.passed)


def why_not(name: str, kind: str, column: str) -> str:
    """The reason for a cell without a test."""
    if column == "state":
        if kind != "recurrent or hybrid":
            return "-"
        reason = reason_against(tiny(name)) or "-"
        return re.sub(r"^\w+ ", "", reason)
    if kind == "recurrent or hybrid":
        return "-" if column == "cache" or reason_against(tiny(name)) else "chains of one row"
    if kind == "ALiBi":
        return "position is a bias of the slot: chains"
    if kind == "encoder-decoder":
        return "chains"
    return "its window counts slots inside the layer: chains" if name == "gpt_neo" else "-"


def main() -> int:
    """Run the tests, write the table."""
    outcomes = Outcomes()
    folder = Path(__file__).parent
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, str(folder), str(folder.parent / "caches")], plugins=[outcomes])
    lines = []
    for kind, names in KINDS.items():
        for name in names:
            cells = []
            for column, tests in COLUMNS.items():
                results = [passed for test in tests for passed in outcomes.passed.get((test, name), [])]
                cells.append(
                    why_not(name, kind, column) if not results else "yes" if all(results) else "FAILS"
                )
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    text = HEAD.format(version=transformers.__version__) + "\n".join(lines) + "\n"
    (folder.parents[1] / "docs" / "models.md").write_text(text, encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
