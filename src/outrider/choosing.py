"""From what the caller wrote to a generator and a controller. Loads torch only where it is needed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.contract import CandidateGenerator, get
from outrider.control import Controller, CostRule, Fixed, Heuristic
from outrider.errors import OptionError
from outrider.flags import Flags
from outrider.generators._function import FunctionGenerator
from outrider.generators.auto import Generator as Auto
from outrider.types import HiddenStates

_UNLIMITED = 2**31


def parse_spec(text: str) -> tuple[Any, dict[str, Any]]:
    """A generator's name, class or function, and options, from what stands on a command line.

    That is `NAME:key=value,key=value` or `FILE.py:key=value`; a label may stand before a file, as in
    `mine:FILE.py`. Values are Python literals, or else text.

    **Raises:** `OptionError` where an option is not `key=value`, or the file holds no generator.
    """
    match = re.fullmatch(r"(?:\w+:)?(?P<file>[^:]*\.py)(?::(?P<rest>.*))?", text)
    name, rest = (match["file"], match["rest"] or "") if match else text.partition(":")[::2]
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"{part!r} in {text} is no option; write NAME:key=value,key=value")
        try:
            options[key.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key.strip()] = value
    return (_from_file(Path(name)) if match else name), options


def _from_file(path: Path) -> Any:
    """The one candidate generator that a Python file defines; where it defines none, its one function."""
    if not path.is_file():
        raise OptionError(
            f"there is no file {str(path)!r} to take a generator from; give the path of a Python file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"{path} cannot be read as Python: {type(error).__name__}: {error}") from error
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    classes = [value for value in own if inspect.isclass(value) and issubclass(value, CandidateGenerator)]
    functions = [value for value in own if inspect.isfunction(value) and not value.__name__.startswith("_")]
    found: list[Any] = classes or functions
    if len(found) != 1:
        kind = "candidate generators" if classes else "functions and no candidate generator"
        raise OptionError(f"{path} defines {len(found)} {kind}; it must define one")
    return found[0]


def make_generator(spec: Any, **options: Any) -> CandidateGenerator:
    """A generator from an instance, a class, a registered name, or a function from ids to ids.

    Objects with transformers' contract (`get_candidates`) are bridged.

    **Raises:** `UnknownNameError` for a name nobody registered; `OptionError` for an option the generator
    does not take, or for something that is no generator.
    """
    if isinstance(spec, str):
        spec = get(spec)
    if inspect.isclass(spec):
        try:
            inspect.signature(spec).bind(**options)
        except TypeError as error:
            takes = [name for name in inspect.signature(spec).parameters if name != "self"]
            name = spec.__module__.rsplit(".", 1)[-1] if spec.__name__ == "Generator" else spec.__name__
            raise OptionError(
                f"candidate generator {name!r} cannot be made: {error}; it takes {', '.join(takes) or 'no options'}"
            ) from None
        spec = spec(**options)
    elif options:
        raise OptionError(f"options {', '.join(options)} need a generator's name or class, not {spec!r}")
    if isinstance(spec, CandidateGenerator) and type(spec).propose is not CandidateGenerator.propose:
        if any(isinstance(need, HiddenStates) for need in spec.needs):
            raise OptionError(
                f"{type(spec).__name__} needs the target's hidden states, which the loop does not hand on; "
                "take TopLogits or Scores instead"
            )
        return spec
    if hasattr(spec, "get_candidates"):
        from outrider.generators._transformers import FromTransformers  # needs torch

        return FromTransformers(spec)
    if callable(spec):
        return FunctionGenerator(spec)
    raise OptionError(
        f"candidate_generator must be a generator, its class, its name, or a function from ids to ids, not {spec!r}"
    )


def generator_maker(spec: Any, options: dict[str, Any]) -> Callable[[Any], Any]:
    """What gives the generator once the target's tokenizer is known.

    It is made at once where it takes no tokenizer, so that a mistake is found before the model is loaded.
    """
    cls = get(spec) if isinstance(spec, str) else spec
    if "tokenizer" not in inspect.signature(cls).parameters:
        made = make_generator(spec, **options)
        return lambda tokenizer: made
    return lambda tokenizer: make_generator(spec, **{"tokenizer": tokenizer, **options})


def choose(spec: Any, flags: Flags, controller: Controller | None) -> tuple[CandidateGenerator, Controller]:
    """The generator and the controller that the argument, or transformers' flags, ask for.

    **Raises:** `OptionError` where they contradict each other.
    """
    flags.check()
    # An n-gram size alone means prompt lookup too.
    chosen = flags.sources() or [name for name in flags.given() if name == "max_matching_ngram_size"]
    if chosen and not (isinstance(spec, str) and spec == "auto"):
        raise OptionError(f"candidate_generator and {chosen[0]} each choose a generator; pass one of them")
    generator = _from_flags(flags) if chosen else make_generator(spec)
    return generator, controller or _controller(flags, not isinstance(generator, Auto))


def _from_flags(flags: Flags) -> CandidateGenerator:
    if flags.assistant_model is None and flags.assistant_early_exit is None:
        return make_generator(
            "prompt_lookup",
            num_tokens=flags.prompt_lookup_num_tokens or 10,
            max_ngram_size=flags.max_matching_ngram_size or 2,
        )
    _check_tokenizers(flags.tokenizer, flags.assistant_tokenizer)
    settings = getattr(flags.assistant_model, "generation_config", None)
    threshold = flags.assistant_confidence_threshold
    if threshold is None:
        threshold = getattr(settings, "assistant_confidence_threshold", None)
    return make_generator(
        "draft_model",
        model=flags.assistant_model,
        early_exit=flags.assistant_early_exit,
        confidence_threshold=0.4 if threshold is None else threshold,
        num_tokens=_UNLIMITED,
    )


def _check_tokenizers(target: Any, draft: Any) -> None:
    """**Raises:** `OptionError` where the draft model's ids would mean other tokens to the target."""
    if draft is None or draft is target:
        return
    if target is None:
        raise OptionError("assistant_tokenizer is compared with the target's; pass tokenizer=... too")
    if draft.get_vocab() != target.get_vocab():
        raise OptionError(
            "drafting with another tokenizer's model is not supported; use an assistant_model that shares "
            "the target's tokenizer, or candidate_generator='auto'"
        )


def _controller(flags: Flags, explicit: bool) -> Controller:
    """The cost rule for "auto"; transformers' schedules where its flags, or a named generator, ask for them."""
    settings = getattr(flags.assistant_model, "generation_config", None)
    number = flags.num_assistant_tokens or getattr(settings, "num_assistant_tokens", None)
    schedule = flags.num_assistant_tokens_schedule or getattr(settings, "num_assistant_tokens_schedule", None)
    if number is None and flags.assistant_model is None and flags.assistant_early_exit is None:
        return Fixed(_UNLIMITED) if explicit else CostRule()
    if schedule in (None, "constant"):
        return Fixed(number or 20)
    if schedule == "heuristic_transient" or flags.assistant_model is None:
        return Heuristic(number or 20, persist=schedule == "heuristic")
    # "heuristic" outlives the call, as the user's configuration is not to be written to.
    kept = _persistent.get(flags.assistant_model)
    if kept is None or kept[0] != number:
        kept = (number, Heuristic(number or 20, persist=True))
        _persistent[flags.assistant_model] = kept
    return kept[1]


# For each draft model: the number it started with, and the controller that went on from there.
_persistent: weakref.WeakKeyDictionary[Any, tuple[int | None, Heuristic]] = weakref.WeakKeyDictionary()
