"""What a result's first line tells: versions, machine, settings; what is needed to run it again."""

from __future__ import annotations

import contextlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outrider.bench.contestants import Way
from outrider.bench.records import Header
from outrider.bench.run import WARMUP_TOKENS, Settings
from outrider.errors import OptionError, UnsupportedModelError
from outrider.target.probe import forward_times


def make_header(
    model: Any,
    ways: Sequence[Way],
    settings: Settings,
    *,
    model_name: str,
    data: str,
    num_questions: int,
    options: dict[str, Any],
) -> Header:
    """The header of a run that begins now; T(k) is measured where it is not known yet.

    **Arguments:**

    - `options`: Further settings to keep.
    """
    contestants = tuple(way.contestant for way in ways)
    times: dict[int, float] = {}
    with contextlib.suppress(UnsupportedModelError):
        times = dict(forward_times(model).seconds)
    return Header(
        versions={name: version(name) for name in ("outrider", "torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
        machine=f"{platform.system()} {platform.release()} {platform.machine()}",
        device=device_name(model.device),
        device_type=model.device.type,
        threads=torch.get_num_threads(),
        dtype=str(model.dtype).removeprefix("torch."),
        model=model_name,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        data=data,
        num_questions=num_questions,
        settings={
            "max_new_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "batch": list(settings.batches),
            "repeat": settings.repeat,
            "raw": settings.raw,
            "warmup": WARMUP_TOKENS,
            **options,
        },
        contestants=contestants,
        baseline=contestants[0].name,
        seed=settings.seed if settings.temperature else None,
        git=git_state(),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        forward_times=times,
        lossy=any(contestant.lossy for contestant in contestants),
    )


def check_same(old: Header, new: Header, path: Path) -> None:
    """**Raises:** `OptionError` where a result cannot be gone on with, since something was set otherwise."""
    for name in ("model", "dtype", "device", "data", "num_questions", "settings", "seed", "baseline"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise OptionError(
                f"{path} was measured with {name} {before}, and now it is {now}; ask the same, or name another --out"
            )
    before, now = ([contestant.name for contestant in header.contestants] for header in (old, new))
    if before != now:
        raise OptionError(
            f"{path} has the contestants {', '.join(before)}, and now they are {', '.join(now)}; "
            "ask for the same, or name another --out"
        )


def device_name(device: torch.device) -> str:
    """What the maker calls the CPU or the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state() -> str:
    """Commit of the checkout that this package is run from, with "-dirty" where it was changed; else ""."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
