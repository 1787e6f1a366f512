"""transformers' own flags of assisted decoding, and the generator and controller they choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from outrider.errors import OptionError

_SOURCES = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@dataclass(frozen=True)
class Flags:
    """What transformers calls them; None where the user said nothing."""

    assistant_model: Any = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None
    assistant_early_exit: int | None = None
    assistant_tokenizer: Any = None
    tokenizer: Any = None

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> Flags:
        """Remove the flags from a call's arguments, and return them."""
        return cls(**{f.name: arguments.pop(f.name, None) for f in fields(cls)})

    def filled_from(self, config: Any, defaults: Mapping[str, Any] | None = None) -> Flags:
        """These flags, with what is unset taken from a generation config where it differs from `defaults`."""
        found = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                value = getattr(config, f.name, None)
                if defaults is not None and value == defaults.get(f.name):
                    value = None
            found[f.name] = value
        return Flags(**found)

    def given(self) -> list[str]:
        """Names of the flags that are set; a tokenizer alone asks for nothing."""
        return [f.name for f in fields(self) if f.name != "tokenizer" and getattr(self, f.name) is not None]

    def sources(self) -> list[str]:
        """Names of the flags that are set and each choose a generator of their own."""
        return [name for name in self.given() if name in _SOURCES]

    def check(self) -> None:
        """**Raises:** `OptionError` naming flags that contradict each other, or a value that cannot be."""
        sources = self.sources()
        if len(sources) > 1:
            raise OptionError(
                f"{' and '.join(sources)} each choose another candidate generator; pass one of them"
            )
        if self.assistant_tokenizer is not None and self.assistant_model is None:
            raise OptionError("assistant_tokenizer needs an assistant_model; pass both, or neither")
        if self.max_matching_ngram_size is not None and self.prompt_lookup_num_tokens is None and sources:
            raise OptionError(
                f"max_matching_ngram_size belongs to prompt lookup, and {sources[0]} chooses another"
            )
        for name in (
            "prompt_lookup_num_tokens",
            "max_matching_ngram_size",
            "num_assistant_tokens",
            "assistant_early_exit",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        schedule = self.num_assistant_tokens_schedule
        if schedule is not None and schedule not in _SCHEDULES:
            raise OptionError(
                f"num_assistant_tokens_schedule must be one of {', '.join(_SCHEDULES)}, not {schedule!r}"
            )
        threshold = self.assistant_confidence_threshold
        if threshold is not None and (
            isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1
        ):
            raise OptionError(f"assistant_confidence_threshold must lie between 0 and 1, not {threshold!r}")
        if self.assistant_model is not None and not hasattr(self.assistant_model, "config"):
            raise OptionError(
                f"assistant_model must be a transformers model, not {self.assistant_model!r}; load it first"
            )

    def check_beside(self, spec: Any, controller: Any) -> None:
        """**Raises:** `OptionError` for a flag of the call that its generator or controller cannot heed.

        For what the caller wrote, not for what a configuration holds for other calls.
        """
        if self.num_assistant_tokens is not None and (controller is not None or spec == "none"):
            other = "candidate_generator='none'" if controller is None else "controller"
            raise OptionError(f"num_assistant_tokens and {other} each set the draft length; pass one of them")
        drafts_with_model = self.assistant_model is not None or self.assistant_early_exit is not None
        if self.assistant_confidence_threshold is not None and not drafts_with_model:
            raise OptionError(
                "assistant_confidence_threshold is for a draft model; pass assistant_model or "
                "assistant_early_exit, or drop it"
            )
        if self.max_matching_ngram_size is not None and spec != "auto":
            raise OptionError(
                "max_matching_ngram_size chooses prompt lookup, and candidate_generator another; pass one of them"
            )
