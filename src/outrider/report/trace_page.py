"""A trace as one HTML page: the text, and a slider over the rounds with each round's tree."""

from __future__ import annotations

from collections import Counter
from typing import Any

from outrider.report import theme
from outrider.report.page import render
from outrider.report.trace import Node, Round, Trace


def trace_page(trace: Trace) -> str:
    """The page's text. Jinja2 is needed."""
    colours = {"target": "plain"} | {name: theme.series(at) for at, name in enumerate(trace.sources)}
    counts = Counter(piece.origin for piece in trace.pieces)
    return render(
        "trace.html",
        title=f"Trace of {trace.header.model}, {trace.header.generator}",
        trace=trace,
        legend=[(name, colour, counts[name]) for name, colour in colours.items() if counts[name]],
        colours=colours,
        rounds=[_round(one) for one in trace.rounds],
    )


def _round(one: Round) -> dict[str, Any]:
    return {
        "ms": one.ms,
        "top": [[choice.text, choice.probability] for choice in one.top],
        "nodes": [_node(node) for node in one.nodes],
        "pieces": [[piece.text, piece.origin] for piece in one.pieces],
        "verified": one.num_verified,
        "accepted": one.num_accepted,
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "text": node.text,
        "parent": node.parent,
        "source": node.source,
        "estimate": node.estimate,
        "drafted": node.drafted,
        "target": node.target,
        "rank": node.rank,
        "status": node.status,
        "reason": node.reason,
        "top": [[choice.text, choice.probability] for choice in node.top],
    }
