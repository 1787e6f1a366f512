"""Caches by name and caches of the user's own, empty and begun: plain text and plain decoding's cache, or a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, QuantizedCache, StaticCache

import outrider
from outrider.caches.in_place import InPlaceCache
from outrider.errors import OptionError
from outrider.versions import CACHE, can_be_cropped
from tests.drafters import GREEDY, assert_plain_text, assert_refused, drafter
from tests.tiny import prompt, snapshot, tiny

NAMES = ("llama", "mistral", "gemma3_text", "lfm2")
LENGTH = 40
STATIC_TURNS_BACK = can_be_cropped(StaticCache(config=tiny("llama").config, max_cache_len=8))


class Fp8Cache(QuantizedCache):
    """Needs no package but transformers."""

    def __init__(self, config: Any) -> None:
        super().__init__("fp8", config)


CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: DynamicCache(config=config),
    "dynamic, of any model": lambda config: DynamicCache(),
    "static": lambda config: StaticCache(config=config, max_cache_len=LENGTH + 24),
    "in place": InPlaceCache,
    "quantised": Fp8Cache,
}


def begun(name: str, kind: str, num_begun: int) -> Any:
    """A cache that holds the prompt's first tokens."""
    model = tiny(name)
    cache = CACHES[kind](model.config)
    if num_begun:
        with torch.no_grad():
            model(prompt(LENGTH)[:, :num_begun], use_cache=True, **{CACHE: cache})
    return cache


def has(name: str, kind: str) -> bool:
    """Whether plain transformers has that cache for that model."""
    try:
        tiny(name).generate(
            prompt(LENGTH), **{CACHE: begun(name, kind, 4)}, do_sample=False, max_new_tokens=2
        )
    except (ValueError, IndexError):
        return False
    return True


def why_not(name: str, kind: str) -> str | None:
    """What the refusal says; None where the cache is to work."""
    if kind == "quantised":
        return "a quantised cache cannot be rolled back"
    if kind == "static" and name == "lfm2":
        return "a StaticLayer keeps no state" if STATIC_TURNS_BACK else "use another cache"
    if kind == "static" and not STATIC_TURNS_BACK:
        return "StaticLayer cannot be rolled back|StaticSlidingWindowLayer cannot be rolled back"
    if kind == "static" and name != "llama":
        return "StaticSlidingWindowLayer cannot be rolled back"
    return None


@pytest.mark.parametrize("num_begun", [0, 8, 39])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", NAMES)
def test_a_cache_of_the_users_own(name: str, kind: str, num_begun: int) -> None:
    if not has(name, kind):
        with pytest.raises((ValueError, IndexError)):
            outrider.generate(tiny(name), prompt(LENGTH), **{CACHE: begun(name, kind, num_begun)}, **GREEDY)
        return
    flags: dict[str, Any] = {"ids": prompt(LENGTH), CACHE: lambda: begun(name, kind, num_begun)}
    if (said := why_not(name, kind)) is not None:
        assert_refused(tiny(name), said, name, **flags)
    else:
        assert_plain_text(tiny(name), name, **flags)


def assert_alike(cache: Any, plain: Any) -> None:
    """Both hold the same tokens, in layers that are set the same way."""
    assert int(cache.get_seq_length()) == int(plain.get_seq_length())
    length = int(plain.get_seq_length())
    for layer, other in zip(cache.layers, plain.layers, strict=True):
        assert type(layer) is type(other) and vars(layer).keys() == vars(other).keys()
        for key, value in vars(layer).items():
            wanted = vars(other)[key]
            if isinstance(value, dict):  # recurrent layers hold their states by number
                pairs = list(zip(value.values(), wanted.values(), strict=True))
            else:
                pairs = [(value, wanted)]
            for one, two in pairs:
                if isinstance(one, Tensor):
                    one, two = (t[..., :length, :] if t.ndim == 4 else t for t in (one, two))
                    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
                else:
                    assert one == two, key


@pytest.mark.parametrize("ends_at", [None, 1, 4, 7])
@pytest.mark.parametrize(
    ("name", "kind"), [(name, "dynamic") for name in NAMES] + [("llama", "static")] * STATIC_TURNS_BACK
)
def test_the_users_cache_is_left_as_plain_decoding_leaves_it(
    name: str, kind: str, ends_at: int | None
) -> None:
    """At the end of the budget, and where an end falls inside an accepted draft."""
    model, ids = tiny(name), prompt(LENGTH)
    text = model.generate(ids, **GREEDY)
    flags = GREEDY if ends_at is None else GREEDY | {"eos_token_id": int(text[0, LENGTH + ends_at])}
    plain = begun(name, kind, 8)
    wanted = model.generate(ids, **{CACHE: plain}, **flags)
    for who in ("oracle", "adversary", "prompt_lookup"):
        cache = begun(name, kind, 8)
        assert torch.equal(
            outrider.generate(model, ids, **drafter(who, text), **{CACHE: cache}, **flags), wanted
        )
        assert_alike(cache, plain)


@pytest.mark.parametrize("drafts", ["adversary", "oracle"])
@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_goes_on_in_one_cache(name: str, drafts: str) -> None:
    model, ids = tiny(name), prompt(20)
    cache, plain = (DynamicCache(config=model.config) for _ in range(2))
    for turn in range(3):
        wanted = model.generate(ids, **{CACHE: plain}, **GREEDY)
        got = outrider.generate(model, ids, **{CACHE: cache}, **drafter(drafts, wanted), **GREEDY)
        assert torch.equal(got, wanted)
        ids = torch.cat([got, prompt(5, seed=turn + 7)], 1)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("where", ["streamer", "criterion", "layer"])
@pytest.mark.parametrize("after", [1, 4, 7])
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_text_can_be_gone_on_with(name: str, after: int, where: str) -> None:
    """The cache then holds no rejected candidate, nor half a round; a sliding layer records no past."""
    model, ids = tiny(name), prompt(LENGTH)
    wanted = model.generate(ids, **GREEDY)
    cache = begun(name, "dynamic", 8)
    calls = 0

    def count(*_: Any, **__: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Interrupted
        return torch.tensor([False])

    class Streamer:
        put, end = staticmethod(count), staticmethod(lambda: None)

    flags = {"streamer": Streamer()} if where == "streamer" else {}
    flags |= {"stopping_criteria": [count]} if where == "criterion" else {}

    def note(*_: Any) -> None:
        count()

    last = model.model.layers[1]
    handle = last.register_forward_hook(note) if where == "layer" else None
    try:
        with pytest.raises(Interrupted):
            outrider.generate(model, ids, **{CACHE: cache}, **drafter("adversary", wanted), **flags, **GREEDY)
    finally:
        if handle is not None:
            handle.remove()
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    if where == "layer" and name == "lfm2":
        return  # a recurrent layer's state of half a forward can't be told from a whole one's, plainly neither
    so_far = wanted[:, : max(LENGTH, int(cache.get_seq_length()) + 1)]
    got = outrider.generate(
        model,
        so_far,
        attention_mask=torch.ones_like(so_far),  # a committed token may be the one that pads
        candidate_generator="none",
        do_sample=False,
        max_new_tokens=wanted.shape[1] - so_far.shape[1],
        **{CACHE: cache},
    )
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", [*NAMES, "t5"])
@pytest.mark.parametrize("implementation", ["dynamic", "static"])
def test_a_cache_by_name(name: str, implementation: str) -> None:
    said = (
        None
        if implementation == "dynamic" or (name == "t5" and STATIC_TURNS_BACK)
        else why_not(name, "static")
    )
    flags = {"cache_implementation": implementation}
    if said is None:
        assert_plain_text(tiny(name), name, **flags)
    else:
        assert_refused(tiny(name), said, name, **flags)


def test_a_quantised_cache_by_name_is_refused() -> None:
    flags: dict[str, Any] = {
        "cache_implementation": "quantized",
        "cache_config": lambda: {"backend": "fp8"},  # some versions of transformers empty it
    }
    if has("llama", "quantised"):
        assert_refused(tiny("llama"), "a quantised cache cannot be rolled back", **flags)
    else:
        with pytest.raises(ValueError, match="fp8"):
            outrider.generate(
                tiny("llama"), prompt(), **GREEDY | flags | {"cache_config": {"backend": "fp8"}}
            )


@pytest.mark.parametrize("backend", ["quanto", "hqq"])
def test_a_missing_package_is_named_by_transformers_own_sentence(backend: str) -> None:
    def flags() -> dict[str, Any]:
        return GREEDY | {"cache_implementation": "quantized", "cache_config": {"backend": backend}}

    with pytest.raises(ImportError) as theirs:
        tiny("llama").generate(prompt(), **flags())
    with pytest.raises(ImportError) as ours:
        outrider.generate(tiny("llama"), prompt(), **flags())
    assert str(ours.value) == str(theirs.value) and "pip install" in str(ours.value)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("implementation", ["offloaded", "offloaded_static"])
@pytest.mark.parametrize("generator", ["none", "auto"])
def test_an_offloaded_cache_without_a_gpu_is_one_sentence(
    generator: str, implementation: str, rows: int
) -> None:
    model, before = tiny("llama"), snapshot(tiny("llama"))
    with pytest.raises(OptionError, match="an offloaded cache waits in the host's memory for a GPU"):
        outrider.generate(
            model,
            prompt().expand(rows, -1),
            candidate_generator=generator,
            cache_implementation=implementation,
            **GREEDY,
        )
    assert snapshot(model) == before
