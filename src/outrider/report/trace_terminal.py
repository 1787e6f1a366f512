"""A trace in the terminal: the text by who each token came from, and a round's tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from outrider.errors import OptionError
from outrider.report.trace import Choice, Node, Round, Trace

_STYLES = ("bold green", "bold cyan", "bold magenta", "bold yellow", "bold blue", "bold red")
_SIGNS = {"accepted": "✓", "rejected": "✗", "unreached": "○"}


def text_view(trace: Trace) -> RenderableType:
    """The text, each token coloured by its source; a legend; one sentence."""
    styles = _styles(trace)
    text = Text()
    for piece in trace.pieces:
        text.append(piece.text, style=styles[piece.origin])
    return Group(text, Text(), _legend(trace), Text(trace.summary, style="dim"))


def round_view(trace: Trace, number: int) -> RenderableType:
    """One round: what stood before it, its tree with each candidate's fate, and what was committed.

    **Raises:** `OptionError` where there is no such round.
    """
    if not 0 <= number < len(trace.rounds):
        raise OptionError(
            f"--round must lie between 0 and {len(trace.rounds) - 1}, not {number}: the trace has {len(trace.rounds)} rounds"
        )
    one, styles = trace.rounds[number], _styles(trace)
    tree = Tree(_root(trace, one), guide_style="dim")
    branches = {-1: tree}
    for index, node in enumerate(one.nodes):
        if node.status == "cut":
            continue
        branches[index] = branches[node.parent].add(_label(node, styles))
    num_cut = len(one.nodes) - one.num_verified
    if num_cut:
        reason = next(node.reason for node in one.nodes if node.status == "cut")
        tree.add(Text(f"{num_cut} more {reason}", style="dim"))
    committed = Text("committed  ", style="dim")
    for piece in one.pieces:
        committed.append(_visible(piece.text), style=styles[piece.origin] or "bold").append(" ")
    title = Text(
        f"Round {number} of {len(trace.rounds) - 1}: {len(one.nodes)} proposed, {one.num_verified} verified, "
        f"{one.num_accepted} accepted, {len(one.pieces)} committed, {one.ms:.1f} ms",
        style="bold",
    )
    return Group(title, tree, committed)


def _styles(trace: Trace) -> dict[str, str]:
    sources = trace.sources
    return {"target": ""} | {name: _STYLES[at % len(_STYLES)] for at, name in enumerate(sources)}


def _legend(trace: Trace) -> Text:
    counts = Counter(piece.origin for piece in trace.pieces)
    legend = Text()
    for name, style in _styles(trace).items():
        if counts[name]:
            legend.append(f"{name} {counts[name]}", style=style).append("   ")
    return legend


def _root(trace: Trace, one: Round) -> Text:
    before = "".join(piece.text for piece in trace.pieces if piece.round < one.number)
    tail = before[-40:] or ("the prompt" if one.number == 0 else "")
    root = Text(_visible(tail) if before else tail, style="bold")
    return root.append(f"   the target: {_choices(one.top)}", style="dim")


def _label(node: Node, styles: dict[str, str]) -> Text:
    taken = node.status == "accepted"
    label = Text(f"{_SIGNS[node.status]} ", style=styles[node.source] if taken else "dim")
    label.append(_visible(node.text), style=styles[node.source] if taken else "")
    label.append(f"  {node.source}", style=styles[node.source])
    if node.estimate is not None:
        label.append(f" {node.estimate:.2f}")
    if node.drafted is not None:
        label.append(f" drawn with {node.drafted:.2f}")
    if node.target is not None:
        label.append(f"  target {node.target:.2f} (rank {node.rank})", style="dim")
    if node.reason:
        label.append(f"  {node.reason}", style="dim")
    return label


def _choices(top: Sequence[Choice]) -> str:
    return ", ".join(f"{_visible(choice.text)} {choice.probability:.2f}" for choice in top[:3])


def _visible(text: str) -> str:
    """A token's text with its blanks shown."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"
