"""Contestants that run in a process of their own: other libraries, in the environment they need."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, final

import torch

from outrider.bench import worker
from outrider.bench.contestants import Answer, Asked
from outrider.bench.records import Contestant
from outrider.errors import OptionError, OutriderError
from outrider.models import files_of

ENGINES = tuple(worker.ENGINES)


@final
class ProcessWay:
    """Another library, told what to do line by line.

    **Arguments:**

    - `model_name`: As `models.load` takes it; the library loads it again.
    - `options`: `python` is the interpreter of the environment that has the library (default: this one);
        what the others mean, the engine's class in `worker.py` says.
    """

    def __init__(
        self, name: str, is_baseline: bool, engine: str, model_name: str, model: Any, options: dict[str, Any]
    ) -> None:
        python = str(options.get("python", sys.executable))
        folder, gguf = files_of(model_name)
        eos = model.generation_config.eos_token_id
        self._load = {
            "model": str(folder),
            "gguf": None if gguf is None else str(gguf),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "threads": torch.get_num_threads(),
            "eos": [eos] if isinstance(eos, int) else list(eos or ()),
            "options": {key: value for key, value in options.items() if key != "python"},
        }
        self._is_loaded = False
        self._words = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, str(Path(worker.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._words.close()
            raise OptionError(f"{python!r} cannot be run for {name}: {error.strerror}") from error
        self._failure = ""
        try:
            version = self._ask({"engine": engine})["version"]
        except OutriderError as error:
            self._failure, version = str(error), ""
        self.contestant = Contestant(name, engine, is_baseline, options, version)

    def answer(self, asked: Asked) -> Answer:
        if self._failure:
            raise OutriderError(self._failure)
        if not self._is_loaded:
            self._ask(self._load)
            self._is_loaded = True
        held = self._ask(
            {
                "prompts": asked.prompts,
                "max_new_tokens": asked.max_new_tokens,
                "temperature": asked.temperature,
                "seed": asked.seed,
            }
        )
        rows = tuple(tuple(int(token) for token in row) for row in held["token_ids"])
        return Answer(rows, held["prefill_s"], held["decode_s"], held["peak_memory_bytes"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._words.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except OSError:
            reply = ""
        if not reply:
            raise OutriderError(f"its process ended with status {self._process.wait()}{self._last_words()}")
        held: dict[str, Any] = json.loads(reply)
        if "error" in held:
            raise OutriderError(held["error"])
        return held

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = [line.strip() for line in self._words if line.strip()]
        return f", saying: {lines[-1][:200]}" if lines else ""
