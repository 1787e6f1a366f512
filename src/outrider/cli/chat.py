"""`outrider chat`: a conversation; what the generator learns in one turn serves the next."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outrider.cli.common import (
    EXACT_HELP,
    console,
    drafting,
    encode_chat,
    exactness_option,
    flush,
    load_model,
    one_sentence,
    progress_console,
    sampling_options,
)
from outrider.errors import OptionError


def chat(
    model: Annotated[str, typer.Option(help="Folder, known name, .gguf file, or 'smollm2'.")],
    generator: Annotated[
        str, typer.Option(help="NAME:key=value,... or FILE.py; see 'outrider generators'.")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="With a temperature: the same text each time.")] = None,
    exact: Annotated[str, typer.Option(help=EXACT_HELP)] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Talk with a model. An empty line, or Ctrl-D, ends it; Ctrl-C stops an answer."""
    with one_sentence():
        make = drafting(generator)
        options: dict[str, Any] = {
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            **exactness_option(exact),
            **sampling_options(temperature),
        }
        target, tokenizer = load_model(model, dtype, trust_remote_code)
        if not tokenizer.chat_template:
            raise OptionError(
                f"{model} has no chat template; use 'outrider generate --raw' to continue plain text"
            )
        drafter = make(tokenizer)
        try:
            _converse(target, tokenizer, {**drafter, **options})
        finally:
            flush(drafter["candidate_generator"])


def _converse(target: Any, tokenizer: Any, options: dict[str, Any]) -> None:
    import outrider
    from outrider.cli.streaming import ConsoleStreamer, summary

    messages: list[dict[str, str]] = []
    while True:
        try:
            said = console.input("[bold]you[/bold] ")
        except EOFError:
            console.print()
            return
        if not said.strip():
            return
        messages.append({"role": "user", "content": said})
        ids = encode_chat(tokenizer, messages)
        try:
            with ConsoleStreamer(tokenizer, console, progress_console) as streamer:
                output = outrider.generate(
                    target, ids, streamer=streamer, return_dict_in_generate=True, **options
                )
        except KeyboardInterrupt:
            console.print("\n(stopped)", style="dim")
            messages.pop()
            continue
        answer = tokenizer.decode(output.sequences[0, ids.shape[1] :], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        progress_console.print(summary(output.stats), style="dim")
