"""What commands share: loading with progress, errors in one sentence, reading a generator's name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from outrider.errors import OptionError, OutriderError

console = Console(highlight=False)
progress_console = Console(stderr=True, highlight=False)

# The colours tokens have by where they came from.
FREE_STYLE = "bold green"

# Set to anything, an error that nobody foresaw shows where it came from.
_DEBUG = "OUTRIDER_DEBUG"

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn errors, and Ctrl-C, into one line on standard error and an exit status.

    2 is an input that cannot work, 1 anything else, 130 an interruption.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        console.print()
        _fail("interrupted", 130)
    except BrokenPipeError:
        # Whoever read the output has enough of it; there is nowhere left to print to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OutriderError as error:
        _fail(str(error), 2)
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        said = " ".join(str(error).split())[:300]
        if not isinstance(error, OSError | MemoryError):
            said = f"{type(error).__name__}{': ' * bool(said)}{said} (set {_DEBUG}=1 to see where)"
        _fail(said or type(error).__name__, 1)


def _fail(message: str, status: int) -> None:
    print(f"outrider: {message}", file=sys.stderr)
    raise typer.Exit(status)


def load_model(name: str, dtype: str, trust_remote_code: bool) -> tuple[Any, Any]:
    """The model and its tokenizer, with a spinner that says what is waited for."""
    if dtype not in _DTYPES:
        raise OptionError(f"--dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    with _loading(name) as say:
        import torch

        from outrider.cores import use_physical_cores
        from outrider.models import load

        use_physical_cores()
        wanted = None if dtype == "auto" else getattr(torch, dtype)
        return load(name, wanted, trust_remote_code=trust_remote_code, say=say)


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer alone, with the same spinner."""
    with _loading(name) as say:
        from outrider.models import load_tokenizer as load

        return load(name, trust_remote_code, say)


@contextmanager
def _loading(name: str) -> Iterator[Callable[[str], None]]:
    """A spinner, and what changes its words."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with progress_console.status(f"loading {name}") as status:
        from huggingface_hub.utils import logging as hub_logging
        from transformers.utils import logging

        for library in (logging, hub_logging):
            library.set_verbosity_error()
        logging.disable_progress_bar()
        yield status.update


def parse_generator(text: str) -> tuple[Any, dict[str, Any]]:
    """What `choosing.parse_spec` reads, which takes a second to load."""
    from outrider.choosing import parse_spec

    return parse_spec(text)


def drafting(text: str) -> Callable[[Any], dict[str, Any]]:
    """From `--generator` to what makes, once the target's tokenizer is known, a fresh generator and its controller."""
    from outrider.choosing import choose, generator_maker
    from outrider.flags import Flags

    spec, options = parse_generator(text)
    ready = [generator_maker(spec, options)]

    def make(tokenizer: Any) -> dict[str, Any]:
        maker = ready.pop() if ready else generator_maker(spec, options)
        generator, controller = choose(maker(tokenizer), Flags(), None)
        return {"candidate_generator": generator, "controller": controller}

    return make


def flush(generator: Any) -> None:
    """Let a generator that keeps something on disk write it."""
    if hasattr(generator, "flush"):
        generator.flush()


def read_prompt(prompt: str | None, file: Path | None, default: str | None = None) -> str:
    """The prompt as given, from a file, or from standard input; `default` where a terminal waits there."""
    if prompt is not None and file is not None:
        raise OptionError("--prompt and --file each give a prompt; pass one of them")
    if file is not None:
        if not file.is_file():
            raise OptionError(
                f"there is no file {str(file)!r}; give the path of a text file, or use --prompt"
            )
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise OptionError(f"{file} is not UTF-8 text (byte {error.start}); convert it first") from error
    if prompt == "-" or (prompt is None and default is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    if prompt is not None:
        return prompt
    if default is not None:
        return default
    raise OptionError("there is no prompt; give one with --prompt, with --file, or on standard input")


@contextmanager
def writing(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Write lines to a file, each at once; nowhere where `path` is None.

    **Raises:** `OptionError` before any work where the file cannot be written.
    """
    if path is None:
        yield lambda line: None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); give another path") from error
    with file:
        yield lambda line: print(line, file=file, flush=True)


def encode(tokenizer: Any, prompt: str, raw: bool) -> Any:
    """(1, L) ids of a prompt, through the chat template where the tokenizer has one and `raw` is off."""
    if not raw and tokenizer.chat_template:
        return encode_chat(tokenizer, [{"role": "user", "content": prompt}])
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    if not ids.shape[1]:
        raise OptionError(
            "the prompt is empty, so there is nothing to continue; give one with --prompt or --file"
        )
    return ids


def encode_chat(tokenizer: Any, messages: list[dict[str, str]]) -> Any:
    """(1, L) ids of a conversation, ready for the assistant's turn."""
    encoded = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return encoded["input_ids"]


def sampling_options(temperature: float) -> dict[str, Any]:
    """What `generate()` takes for a temperature; 0 is greedy."""
    if temperature < 0:
        raise OptionError(f"--temperature must not be negative, not {temperature}")
    return {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}


_EXACT: dict[str, bool | str | None] = {
    "auto": None,
    "transformers": "transformers",
    "generators": "generators",
    "any": True,
    "off": False,
}
EXACT_HELP = f"In half precision, the same bits whatever drafts: {', '.join(_EXACT)}; see 'outrider doctor'."


def exactness_option(text: str) -> dict[str, bool | str | None]:
    """`exact=` of `outrider.generate`, by its name on the command line.

    **Raises:** `OptionError` for another name.
    """
    if text not in _EXACT:
        raise OptionError(f"--exact takes {', '.join(_EXACT)}, not {text!r}")
    return {"exact": _EXACT[text]}
