"""Whether forwards over several tokens can have the bits of forwards over one: found out, once for a model.

Nothing is taken from tables of kernels: the model at hand runs the same tokens one at a time and several at
once, in its dtype, on its device, with as many threads, and every logit is compared by its bits. What was found
is kept in the user's cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.caches.snapshots import has_recurrent_state
from outrider.errors import OptionError, UnsupportedModelError
from outrider.lean import LeanForward
from outrider.target.exact_attention import BLOCK, REPLACED, Aligned, Apart, Runs, attended_configs, attending
from outrider.target.masks import supports_tree, tree_inputs
from outrider.target.probe import cache_folder, fingerprint
from outrider.types import Candidates
from outrider.versions import CACHE, DummyLayer

Kind = Literal["transformers", "generators"]

# The stronger first.
KINDS: tuple[Kind, ...] = ("transformers", "generators")

# Tokens in the largest forward that is tried, and in those whose price is measured.
_MOST_ROWS = 33
_PRICED_ROWS = 9
_RANDOM_ROWS = 24
# The default wants at least so many: fewer would cost more speed than they promise.
_ENOUGH_ROWS = 17
_DEAREST = 1.1
# Crossed by the forwards that are tried: the blocks of 8 to 64 keys of CPU kernels.
_CONTEXT = 90
_PRICED_CONTEXTS = (100, 1000)
_GROUPS = (16, 8, 4)
_GROUP_CONTEXTS = (90, 300, 500, 1500)


@dataclass(frozen=True, slots=True)
class Exactness:
    """What one kind of exactness is on this machine.

    **Arguments:**

    - `max_rows`: Tokens that a forward may hold; all smaller numbers were tried too. 1 where it can't be had.
    - `group`: Keys that calls of `Apart` are grouped by.
    - `takes_trees`: Whether a tree's tokens have the bits of their paths' too.
    - `prices`: Time of a forward over 9 tokens so, over its usual time, by tokens of context.
    - `reason`: Why no more tokens, in words that follow "since".
    - `complete`: Whether time did not cut the trial short.
    """

    max_rows: int
    group: int = 1
    takes_trees: bool = False
    prices: dict[int, float] | None = None
    reason: str = ""
    complete: bool = True

    def price(self, context: int) -> float:
        """The price at a context, on a line through what was measured."""
        if not self.prices:
            return 1.0
        (short, low), (long, high) = sorted(self.prices.items())
        return low + (high - low) * (min(context, 4 * long) - short) / (long - short)


@final
class ExactRows:
    """Makes a target's forwards exact.

    **Arguments:**

    - `model`, `kind`: What was found for them is `found`.
    """

    def __init__(self, model: PreTrainedModel, kind: Kind, found: Exactness) -> None:
        self.kind = kind
        self.max_rows = found.max_rows
        self.takes_trees = found.takes_trees
        self._group = found.group
        self._device = model.device
        self._configs = attended_configs(model)

    def around(
        self, cache: Any, candidates: Candidates, padding: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """What a forward over the last committed token and its candidates must run in.

        **Arguments:**

        - `cache`: As it is before the forward.
        - `padding`: (1, >= tokens after the forward) bool, where some of the prompt must not be seen.
        """
        num_past, runs = int(cache.get_seq_length()), Runs.of(candidates, self._device)
        if self.kind == "generators":
            return self._aligned(cache, Aligned(num_past, padding, runs))
        if not len(candidates):
            return nullcontext()
        return attending(self._configs, Apart(num_past, padding, runs, self._group))

    @contextmanager
    def _aligned(self, cache: InPlaceCache, attention: Aligned) -> Iterator[None]:
        cache.show_multiples_of(BLOCK)
        try:
            with attending(self._configs, attention):
                yield
        finally:
            cache.show_multiples_of(1)


def exact_rows(
    model: PreTrainedModel, exact: bool | str | None, cache: Any, num_prompt: int, max_length: int
) -> ExactRows | None:
    """What makes the target's forwards exact; None where they shall not, or need not, be.

    **Arguments:**

    - `exact`: None: the strongest kind that was proved and costs under a tenth, in half precision; True: the
        strongest there is, or an error; False: none; "transformers" or "generators": that one, or an error.
    - `cache`: The one in use.
    - `max_length`: Tokens that the text can have at most.

    **Raises:** `OptionError` for another value; `UnsupportedModelError` where it is demanded and can't be had.
    """
    if exact is False or (exact is None and model.dtype not in (torch.bfloat16, torch.float16)):
        return None
    if not (exact is None or exact is True or exact in KINDS):
        raise OptionError(
            f"exact must be None, True, False, 'transformers' or 'generators', not {exact!r}; "
            "see docs/exactness.md"
        )
    reasons = []
    for kind in (exact,) if exact in KINDS else KINDS:
        reason = _reason_by_cache(kind, cache, max_length)
        if reason is None:
            found = exactness(model, kind, in_full=exact is not None)
            wanted = _ENOUGH_ROWS if exact is None else 2
            if found.max_rows >= wanted and (exact is not None or found.price(num_prompt) <= _DEAREST):
                return ExactRows(model, kind, found)
            reason = found.reason
        reasons.append(reason)
    if exact is None:
        return None
    raise UnsupportedModelError(
        f"exact={exact!r} can't be had of {type(model).__name__} in {str(model.dtype).removeprefix('torch.')} "
        f"here, since {'; and '.join(dict.fromkeys(reasons))}; drop exact, or pass exact=False"
    )


def exactness(
    model: PreTrainedModel,
    kind: Kind,
    *,
    in_full: bool = False,
    max_s: float = 3.0,
    folder: Path | None = None,
) -> Exactness:
    """What was found for this model on this machine, now or before.

    **Arguments:**

    - `in_full`: Try all numbers of tokens, however long it takes; else stop after about `max_s` seconds.
    - `folder`: In place of the user's cache folder.
    """
    if (reason := _known_reason(model)) is not None:
        return Exactness(1, reason=reason)
    path = (folder or cache_folder()) / "exactness" / f"{fingerprint(model, 1)}.{kind}.json"
    found = _read(path)
    if found is None or (in_full and not found.complete):
        found = _find(model, kind, float("inf") if in_full else max_s)
        _write(path, found)
    return found


def _reason_by_cache(kind: Kind, cache: Any, max_length: int) -> str | None:
    """Why not with this cache."""
    layers = getattr(cache, "layers", ())
    plain = (DynamicLayer, DynamicSlidingWindowLayer, InPlaceLayer, InPlaceSlidingLayer, DummyLayer)
    odd = next((layer for layer in layers if type(layer) not in plain), None)
    # A DynamicCache without a configuration makes its layers, plain ones, at the first forward.
    if odd is not None or (not layers and type(cache) is not DynamicCache):
        return f"the cache is a {type(cache).__name__}" + (f" with a {type(odd).__name__}" if odd else "")
    if kind == "generators":
        if not isinstance(cache, InPlaceCache):
            return f"the cache is a {type(cache).__name__}, whose keys cannot be seen in whole blocks"
        windows = [layer.sliding_window for layer in layers if isinstance(layer, InPlaceSlidingLayer)]
        if windows and max_length > min(windows):
            return f"a window of {min(windows)} tokens moves, and keys then stand in other places of their blocks"
    return None


def _known_reason(model: PreTrainedModel) -> str | None:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return "the model is an encoder-decoder"
    if getattr(model, "_is_stateful", False) or has_recurrent_state(DynamicCache(config=model.config)):
        return "a recurrent state takes its tokens in other steps"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is by chunks"
    if config._attn_implementation != REPLACED:
        return f"its attention is {config._attn_implementation}, not {REPLACED}"
    if any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules()
    ):
        return "it is compiled"
    return None


@final
class _Trial:
    """A model, a prompt in its cache, and the tokens that follow."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.configs = attended_configs(model)
        self.lean = LeanForward(model, grouped=False)

    def ids(self, length: int) -> Tensor:
        vocab = min(1000, int(self.model.config.get_text_config().vocab_size) - 1)
        return (torch.arange(length, device=self.model.device)[None] * 7919) % vocab + 1

    def prompt(self, context: int) -> InPlaceCache:
        cache = InPlaceCache(self.model.config)
        self.run({"input_ids": self.ids(context), CACHE: cache})
        return cache

    def run(self, inputs: dict[str, Any]) -> Tensor:
        """(n, V) logits."""
        with torch.no_grad(), self.lean:
            logits: Tensor = self.model(**inputs, use_cache=True).logits[0]
        if logits.device.type != "cpu":
            torch.accelerator.synchronize(logits.device)
        return logits

    def rows(self, rows: ExactRows, ids: Tensor, cache: InPlaceCache, parents: Any = None) -> Tensor:
        """(n, V) logits of a forward that is made exact, over a chain, or a tree by its parents."""
        tokens = ids[0, 1:].cpu().numpy()
        candidates = Candidates.chain(tokens) if parents is None else Candidates(tokens, parents)
        inputs: dict[str, Any] = {"input_ids": ids, CACHE: cache}
        if not candidates.is_chain:
            inputs = tree_inputs(self.model, inputs, candidates, cache)
        with rows.around(cache, candidates):
            return self.run(inputs)


def _find(model: PreTrainedModel, kind: Kind, max_s: float) -> Exactness:
    began = perf_counter()
    trial = _Trial(model)
    try:
        group = _largest_group(trial) if kind == "transformers" else 1
        if group is None:
            return Exactness(
                1, reason="its attention layers do not call the function that transformers names"
            )
        if (shape := _shape_that_differs(model)) is not None:
            return Exactness(1, reason=f"a linear layer of {shape} rounds one token otherwise than several")
        rows = ExactRows(model, kind, Exactness(_MOST_ROWS, group))
        cache = trial.prompt(_CONTEXT)
        text = trial.ids(_CONTEXT + _MOST_ROWS)[:, _CONTEXT:]
        alone: list[Tensor] = []
        for token in text.split(1, dim=1):
            began_one = perf_counter()
            alone.append(trial.rows(rows, token, cache))
            one_s = perf_counter() - began_one
            # Half of the time for these, half for the forwards over several.
            if len(alone) > 1 and perf_counter() - began + one_s > max_s / 2:
                break
        cache.crop(-len(alone))
        max_rows, reason = 1, ""
        for size in range(2, len(alone) + 1):
            if perf_counter() - began > max_s:
                break
            together = trial.rows(rows, text[:, :size], cache)
            cache.crop(-size)
            if not _same_bits(together, torch.cat(alone[:size])):
                reason = f"a forward over {size} tokens does not have the bits of forwards over one"
                break
            max_rows = size
        complete = bool(reason) or max_rows == _MOST_ROWS
        takes_trees = max_rows >= _PRICED_ROWS and _trees_hold(trial, rows, cache, text[:, :max_rows])
        prices = _prices(trial, rows) if max_rows >= _PRICED_ROWS else None
        reason = reason or f"only {max_rows} tokens were tried"
        return Exactness(max_rows, group, takes_trees, prices, reason, complete)
    except Exception as error:  # a model may fail under a foreign attention in any way; then it is not had
        first = (str(error).splitlines() or [""])[0]
        return Exactness(1, reason=f"it fails under it ({type(error).__name__}: {first})")


def _shape_that_differs(model: PreTrainedModel) -> str | None:
    """The shape of a linear layer that has other bits for random rows together than alone; None where none has.

    Such a difference can be rare, and then the few tokens of the trial do not show it.
    """
    layers = {
        (module.weight.shape, module.weight.dtype): module
        for module in model.modules()
        if type(module) is torch.nn.Linear
    }
    for (shape, dtype), layer in layers.items():
        random = torch.Generator(layer.weight.device).manual_seed(0)
        size = (_RANDOM_ROWS, shape[1])
        inputs = torch.randn(size, generator=random, device=layer.weight.device, dtype=torch.float32).to(
            dtype
        )
        with torch.no_grad():
            together = layer(inputs[None])[0]
            alone = torch.cat([layer(row[None, None])[0] for row in inputs])
        if not torch.equal(together, alone):
            return f"{shape[1]} to {shape[0]}"
    return None


def _trees_hold(trial: _Trial, rows: ExactRows, cache: InPlaceCache, text: Tensor) -> bool:
    """Whether the paths of a tree of `text` have the bits of chains. `cache` holds what precedes it."""
    if not supports_tree(trial.model):
        return False
    size = text.shape[1]
    # Three paths from the root, a node of each in turn, and one more that leaves the first midway.
    parents = np.maximum(np.arange(size - 1) - 3, -1)
    parents[-1] = parents[size // 2]
    nodes = trial.rows(rows, text, cache, parents)
    cache.crop(-size)
    for leaf in range(size - 5, size - 1):
        path = [leaf]
        while path[0] >= 0:
            path.insert(0, int(parents[path[0]]))
        index = torch.tensor(path, device=text.device) + 1
        chain = trial.rows(rows, text[:, index], cache)
        cache.crop(-len(path))
        if not _same_bits(nodes[index], chain):
            return False
    return True


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _largest_group(trial: _Trial) -> int | None:
    """The largest group of `Apart` that changes no bit on random states of the model's shapes; None without calls."""
    shapes: list[tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]] = []

    def note(module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        shapes.append((module, query, key, value, options))
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2)

    with attending(trial.configs, note):
        trial.run({"input_ids": trial.ids(2), CACHE: InPlaceCache(trial.model.config)})
    if not shapes:
        return None
    kinds = {tuple(state.shape[1::2] for state in call[1:4]): call for call in shapes}
    return next((g for g in _GROUPS if all(_group_holds(g, *call) for call in kinds.values())), 1)


def _group_holds(
    group: int, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> bool:
    random = torch.Generator(query.device).manual_seed(0)
    options = {**options, "sliding_window": None}

    def drawn(like: Tensor, length: int) -> Tensor:
        shape = (1, like.shape[1], length, like.shape[3])
        return torch.randn(shape, generator=random, device=like.device, dtype=torch.float32).to(like.dtype)

    for context in _GROUP_CONTEXTS:
        states = [drawn(like, context * (like is not query) + _MOST_ROWS) for like in (query, key, value)]
        ways: list[Callable[..., Tensor]] = [Apart(context), Apart(context, group=group)]
        with torch.no_grad():
            one, other = (way(module, *states, options) for way in ways)
        if not torch.equal(one, other):
            return False
    return True


def _prices(trial: _Trial, rows: ExactRows) -> dict[int, float]:
    """Forwards over 9 tokens exactly and as usual, in turn."""
    prices = {}
    usual = LeanForward(trial.model)
    for context in _PRICED_CONTEXTS:
        cache = trial.prompt(context)
        text = trial.ids(_PRICED_ROWS)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(5):
            for exactly, times in seconds.items():
                began = perf_counter()
                if exactly:
                    trial.rows(rows, text, cache)
                else:
                    with usual:
                        trial.run({"input_ids": text, CACHE: cache})
                times.append(perf_counter() - began)
                cache.crop(-_PRICED_ROWS)
        prices[context] = min(seconds[True]) / min(seconds[False])
    return prices


def _read(path: Path) -> Exactness | None:
    """What was kept; None where nothing is, or nothing usable."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        prices = held["prices"]
        return Exactness(
            int(held["max_rows"]),
            int(held["group"]),
            bool(held["takes_trees"]),
            None if prices is None else {int(size): float(price) for size, price in prices.items()},
            str(held["reason"]),
            bool(held["complete"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, found: Exactness) -> None:
    """Keep it; a folder that cannot be written only costs the time to find it again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(found)), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return
