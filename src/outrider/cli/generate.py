"""`outrider generate`: one prompt, streamed; or the side by side with `--compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.common import (
    EXACT_HELP,
    console,
    drafting,
    encode,
    exactness_option,
    flush,
    load_model,
    one_sentence,
    progress_console,
    read_prompt,
    sampling_options,
)
from outrider.errors import OptionError

# Repeats what it is given, as edits of code do: there drafting pays.
DEMO_PROMPT = '''Rename the parameter `w` to `width` and `h` to `height` in this code. Answer with the code only.

```python
def area(w, h):
    """Area of a rectangle."""
    return w * h


def perimeter(w, h):
    """Length of a rectangle's border."""
    return 2 * (w + h)


def describe(w, h):
    """Print what is known of a rectangle."""
    print("area:", area(w, h))
    print("perimeter:", perimeter(w, h))
```'''


def generate(
    model: Annotated[str, typer.Option(help="Folder, known name, .gguf file, or 'smollm2'.")],
    prompt: Annotated[str | None, typer.Option(help="The prompt; '-' reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.")] = None,
    generator: Annotated[
        str, typer.Option(help="NAME:key=value,... or FILE.py; see 'outrider generators'.")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=0)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="With a temperature: the same text each time.")] = None,
    exact: Annotated[str, typer.Option(help=EXACT_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Side by side with transformers' own decoding.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="With --compare: save what is shown as an SVG.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Generate text from a prompt, and say what it took."""
    with one_sentence():
        text = read_prompt(prompt, file, DEMO_PROMPT if compare else None)
        if picture is not None and not compare:
            raise OptionError("--picture saves what --compare shows; pass both")
        make = drafting(generator)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, **sampling_options(temperature)}
        ours = exactness_option(exact)
        target, tokenizer = load_model(model, dtype, trust_remote_code)
        ids = encode(tokenizer, text, raw)
        if not compare:
            drafter = make(tokenizer)
            try:
                _stream(target, tokenizer, ids, {**drafter, **ours, "seed": seed, **options})
            finally:
                flush(drafter["candidate_generator"])
            return
        from outrider.cli.compare import compare as run
        from outrider.cli.compare import show

        console.record = picture is not None
        contestants = run(target, ids, lambda: make(tokenizer), generator, seed, **ours, **options)
        show(console, target, tokenizer, ids, contestants, sampled=bool(temperature))
        if picture is not None:
            console.save_svg(str(picture), title="outrider generate --compare")


def _stream(target: Any, tokenizer: Any, ids: Any, options: dict[str, Any]) -> None:
    import outrider
    from outrider.cli.streaming import ConsoleStreamer, summary

    with ConsoleStreamer(tokenizer, console, progress_console) as streamer:
        output = outrider.generate(target, ids, streamer=streamer, return_dict_in_generate=True, **options)
    progress_console.print(summary(output.stats), style="dim")
