"""Another library at work in a process, and an environment, of its own.

Run as a script by `contestants/process.py`: the first line of standard input says which engine and what to
load, every later one what to generate; each is answered by one line. It imports nothing of Outrider, so that
any Python of the machine can run it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import sys
from pathlib import Path
from time import perf_counter
from typing import Any


class Peak:
    """The most memory in use from its making on: of a GPU's allocator, else the process's resident memory.

    Where the system cannot reset a process's peak (all but Linux), it counts from the process's start.

    **Arguments:**

    - `device`: A torch device; None: the process's memory.
    """

    def __init__(self, device: Any = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        if self._device is not None:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def num_bytes(self) -> int:
        """The peak so far."""
        if self._device is not None:
            import torch

            return int(torch.cuda.max_memory_allocated(self._device))
        with contextlib.suppress(OSError, StopIteration):
            status = Path("/proc/self/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            return int(line.split()[1]) * 1024
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


Rows = list[list[int]]


def _transformers_model(load: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(load["threads"])
    model = AutoModelForCausalLM.from_pretrained(load["model"], dtype=getattr(torch, load["dtype"]))
    return model.to(load["device"]).eval()


class Economize:
    """economize's prompt lookup through `decode()`: options are LookupConfig's, and cycle_length."""

    package = "economize"

    def __init__(self, load: dict[str, Any]) -> None:
        import economize
        from economize.techniques.lookup import LookupConfig

        options = dict(load["options"])
        decoding = economize.DecodeConfig(cycle_length=options.pop("cycle_length", 11))
        self._model = economize.apply(_transformers_model(load), LookupConfig(**options), decoding=decoding)
        self._eos = set(load["eos"])
        self._device = load["device"]

    def __call__(self, prompt: list[int], asked: dict[str, Any]) -> tuple[list[int], float]:
        import torch

        first: list[float] = []

        def ends(tokens: Any) -> bool:
            first[:] = first or [perf_counter()]
            return int(tokens[-1]) in self._eos

        result = self._model.decode(
            torch.tensor(prompt, device=self._device), asked["max_new_tokens"], stop=ends
        )
        return result.tokens.tolist(), first[0]


class Flashspec:
    """flashspec's n-gram drafter: options are NgramDrafter's, and gamma."""

    package = "flashspec"

    def __init__(self, load: dict[str, Any]) -> None:
        import torch
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine.ngram import NgramDrafter
        from flashspec.engine.verifier import TargetModel

        options = dict(load["options"])
        model, device = _transformers_model(load), torch.device(load["device"])
        config = FlashSpecConfig(
            target_model=load["model"],
            draft_models=["ngram"],
            device=load["device"],
            drafter_strategy="bandit",
            sampling=SamplingConfig(gamma=options.pop("gamma", 10), temperature=0.0),
            bandit=BanditConfig(n_arms=1),
            eos_token_ids=tuple(load["eos"]),
        )
        target = TargetModel(load["model"], device, model.dtype, model=model)
        self._engine = SpeculativeEngine(config, [NgramDrafter(**options)], target)
        self._device = device
        self._first: list[float] = []
        forward = model.forward

        def noted(*arguments: Any, **named: Any) -> Any:
            output = forward(*arguments, **named)
            self._first[:] = self._first or [perf_counter()]
            return output

        model.forward = noted

    def __call__(self, prompt: list[int], asked: dict[str, Any]) -> tuple[list[int], float]:
        import torch

        self._first.clear()
        result = self._engine.generate(
            torch.tensor([prompt], device=self._device), max_new_tokens=asked["max_new_tokens"]
        )
        return [token for token in result.output_ids[0].tolist() if token >= 0], self._first[0]


class LlamaCpp:
    """llama-cpp-python on a .gguf file: options are Llama's; num_pred_tokens asks for its prompt lookup."""

    package = "llama-cpp-python"

    def __init__(self, load: dict[str, Any]) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        options = {"n_ctx": 4096, "n_threads": load["threads"], "n_threads_batch": load["threads"]}
        options |= load["options"]
        lookup = {
            name: options.pop(name) for name in ("num_pred_tokens", "max_ngram_size") if name in options
        }
        self._llama = llama_cpp.Llama(
            load["gguf"],
            draft_model=LlamaPromptLookupDecoding(**lookup) if lookup else None,
            logits_all=bool(lookup),
            verbose=False,
            **options,
        )
        self._eos = set(load["eos"])

    def __call__(self, prompt: list[int], asked: dict[str, Any]) -> tuple[list[int], float]:
        self._llama.reset()
        first, tokens = 0.0, []
        for token in self._llama.generate(
            prompt, temp=asked["temperature"], top_k=0 if asked["temperature"] else 1, top_p=1.0, min_p=0.0
        ):
            first = first or perf_counter()
            tokens.append(token)
            if token in self._eos or len(tokens) >= asked["max_new_tokens"]:
                break
        return tokens, first


class Vllm:
    """vLLM: options with a `method` are its speculative_config; `llm_...` are arguments of LLM()."""

    package = "vllm"

    def __init__(self, load: dict[str, Any]) -> None:
        from vllm import LLM

        options = load["options"]
        engine = {
            name.removeprefix("llm_"): value for name, value in options.items() if name.startswith("llm_")
        }
        speculative = {name: value for name, value in options.items() if not name.startswith("llm_")}
        arguments: dict[str, Any] = {
            "model": load["model"],
            "dtype": load["dtype"],
            "max_model_len": 4096,
            "enable_prefix_caching": False,
            "speculative_config": speculative or None,
        }
        self._llm = LLM(**arguments | engine)

    def batch(self, prompts: Rows, asked: dict[str, Any]) -> tuple[Rows, float]:
        """All rows at once, stepping the engine by hand to see the first token come."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=asked["temperature"],
            max_tokens=asked["max_new_tokens"],
            seed=asked["seed"] if asked["temperature"] else None,
        )
        engine = self._llm.llm_engine
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        first = 0.0
        rows: Rows = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or perf_counter()
                rows[int(output.request_id)] = list(output.outputs[0].token_ids)
        return rows, first


ENGINES: dict[str, Any] = {
    "economize": Economize,
    "flashspec": Flashspec,
    "llama_cpp": LlamaCpp,
    "vllm": Vllm,
}


def _answer(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    peak = Peak()
    began = perf_counter()
    if hasattr(engine, "batch"):
        rows, first = engine.batch(asked["prompts"], asked)
    elif len(asked["prompts"]) > 1:
        raise ValueError("it takes one prompt at a time; measure it with --batch 1")
    else:
        tokens, first = engine(asked["prompts"][0], asked)
        rows = [tokens]
    ended = perf_counter()
    return {
        "token_ids": rows,
        "prefill_s": first - began,
        "decode_s": ended - first,
        "peak_memory_bytes": peak.num_bytes(),
    }


def _sentence(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"


def main() -> None:
    """Serve until standard input ends. What the engine prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(**held: Any) -> None:
        replies.write(json.dumps(held) + "\n")
        replies.flush()

    requests = iter(sys.stdin.readline, "")
    cls = ENGINES[json.loads(next(requests))["engine"]]
    try:
        reply(version=importlib.metadata.version(cls.package))
    except importlib.metadata.PackageNotFoundError:
        reply(error=f"{cls.package} is not installed for {sys.executable}; pip install {cls.package}")
        return
    engine = None
    for request in requests:
        held = json.loads(request)
        try:
            if engine is None:
                engine = cls(held)
                reply(ready=True)
            else:
                reply(**_answer(engine, held))
        except Exception as error:
            reply(error=_sentence(error))


if __name__ == "__main__":
    main()
