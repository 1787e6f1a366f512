"""The same text as plain decoding, token for token; and the same for every generator."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from outrider.control import Fixed
from outrider.generation import generate
from outrider.testing.generators import AdversarialGenerator, OracleGenerator, RandomGenerator
from outrider.testing.models import tiny_prompts

_SMALL = 50_000_000


def assert_lossless(
    generator: Any,
    model: Any,
    *,
    prompts: Iterable[Tensor] | None = None,
    budgets: Sequence[int] = (1, 4, 16),
    dtypes: Sequence[torch.dtype] | None = None,
    batch_sizes: Sequence[int] = (1, 4),
    max_new_tokens: int = 32,
    **generate_kwargs: Any,
) -> int:
    """Greedy tokens with candidates equal `model.generate`'s, alone and in batches.

    **Arguments:**

    - `generator`: What `outrider.generate` takes as `candidate_generator`.
    - `model`: The target; left as it was.
    - `prompts`: (1, L) int64 each, of any lengths; random ones where None.
    - `budgets`: Most candidates a round; each is tried.
    - `dtypes`: The model is tried in each, on a copy. None: float32 and float64 for a model of less
        than 50 million parameters, else as it is.
    - `batch_sizes`: Prompts generated for at once, padded on the left; each is tried, and every row must be
        what `model.generate` gives it alone.
    - `generate_kwargs`: For both sides: processors, penalties, stopping criteria.

    **Returns:** how many tokens were compared.

    **Raises:** `AssertionError` that tells the first difference, and how near a tie it was.
    """
    compared = 0
    vocab = model.config.get_text_config().vocab_size
    rows = list(prompts) if prompts is not None else tiny_prompts(vocab)
    for dtype in dtypes or _default_dtypes(model):
        target = model if dtype == model.dtype else copy.deepcopy(model).to(dtype)
        expected = [plain(target, ids, max_new_tokens=max_new_tokens, **generate_kwargs) for ids in rows]
        for budget, size in itertools.product(budgets, batch_sizes):
            compared += _compare_all(
                target,
                rows,
                expected,
                size,
                f"budget {budget}, {dtype}",
                candidate_generator=generator,
                controller=Fixed(budget),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                **generate_kwargs,
            )
    return compared


def assert_drafter_invariant(
    model: Any,
    generators: Iterable[Any] = (),
    *,
    prompts: Iterable[Tensor] | None = None,
    seed: int = 0,
    batch_sizes: Sequence[int] = (1, 4),
    max_new_tokens: int = 24,
    **generate_kwargs: Any,
) -> int:
    """Keyed sampling gives one text: for none, an oracle, random, hostile, and the given generators.

    **Arguments:** as `assert_lossless`; `seed` is the text's. Prompts must differ: where two rows of a batch
        have one prompt, the second has another text.

    **Returns:** how many tokens were compared.

    **Raises:** `AssertionError` that tells which generator changed the text, and where.
    """
    vocab = model.config.get_text_config().vocab_size
    rows = list(prompts) if prompts is not None else tiny_prompts(vocab)
    options = {"seed": seed, "do_sample": True, "max_new_tokens": max_new_tokens, **generate_kwargs}
    expected = [generate(model, ids, candidate_generator="none", **_mask(ids, options)) for ids in rows]
    known = [text[0].tolist() for text in expected]
    others = [
        OracleGenerator(known),
        OracleGenerator(known, num_wrong=2),
        RandomGenerator(vocab),
        AdversarialGenerator(),
        *generators,
    ]
    compared = 0
    for generator, size in itertools.product(others, batch_sizes):
        what = f"{_name(generator)}, seed {seed}"
        compared += _compare_all(model, rows, expected, size, what, candidate_generator=generator, **options)
    return compared


def plain(model: Any, ids: Tensor, **generate_kwargs: Any) -> Tensor:
    """`model.generate`'s greedy text, (1, L) int64."""
    sequences: Tensor = model.generate(ids, do_sample=False, **_mask(ids, generate_kwargs))
    return sequences


def _compare_all(
    model: Any, rows: Sequence[Tensor], expected: Sequence[Tensor], size: int, what: str, **options: Any
) -> int:
    """Compare the texts of all prompts, generated for `size` at once; returns how many tokens that were."""
    what = f"{what}, in a batch of {size}" if size > 1 else what
    for start in range(0, len(rows), size):
        texts = _texts(model, rows[start : start + size], **options)
        for ids, wanted, text in zip(rows[start:], expected[start:], texts, strict=False):
            text = _without_padding(text, wanted.shape[1]) if size > 1 else text
            _compare(model, text, wanted, ids.shape[1], what)
    return sum(wanted.shape[1] - ids.shape[1] for ids, wanted in zip(rows, expected, strict=True))


def _texts(model: Any, rows: Sequence[Tensor], **generate_kwargs: Any) -> list[Tensor]:
    """Each prompt's text, (1, L) ids, generated for at once; what ended earlier is padded on the right."""
    width = max(ids.shape[1] for ids in rows)
    pads = [width - ids.shape[1] for ids in rows]
    batch, mask = (
        torch.cat([functional.pad(row, (pad, 0)) for row, pad in zip(values, pads, strict=True)])
        for values in (rows, [torch.ones_like(ids) for ids in rows])
    )
    sequences: Tensor = generate(model, batch, **{"attention_mask": mask} | generate_kwargs)
    return [text[None, pad:] for text, pad in zip(sequences, pads, strict=True)]


def _without_padding(text: Tensor, length: int) -> Tensor:
    """The first `length` ids, where what follows is one id again and again: the row ended before others."""
    rest = text[:, length:]
    return text[:, :length] if bool((rest == rest[:, :1]).all()) else text


def _mask(ids: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    # Without a mask transformers infers one from pad ids, which are ordinary tokens of a tiny vocabulary.
    return {"attention_mask": torch.ones_like(ids)} | kwargs


def _default_dtypes(model: Any) -> Sequence[torch.dtype]:
    return (torch.float32, torch.float64) if model.num_parameters() < _SMALL else (model.dtype,)


def _name(generator: Any) -> str:
    return generator if isinstance(generator, str) else type(generator).__name__


def _compare(model: Any, found: Tensor, expected: Tensor, num_prompt: int, what: str) -> None:
    if torch.equal(found, expected):
        return
    a, b = found[0].tolist(), expected[0].tolist()
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    message = (
        f"{what}: the text differs from new token {at - num_prompt} on: "
        f"{a[at : at + 5]} instead of {b[at : at + 5]}"
    )
    if num_prompt <= at < min(len(a), len(b)):
        with torch.no_grad():
            top = model(expected[:, :at]).logits[0, -1].float().topk(2).values
        message += f"; there the raw logits' two best are {float(top[0] - top[1]):.3g} apart"
    raise AssertionError(message)
