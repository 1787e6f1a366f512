"""What was found out about a model on this machine, kept as JSON in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel


def cache_folder() -> Path:
    """The user's cache folder for Outrider, by the platform's habit."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "outrider"


def fingerprint(model: PreTrainedModel, batch_size: int = 1) -> str:
    """Names model, device, dtype, batch size and versions; a change of any means to find out anew."""
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    parts = [
        type(model).__name__,
        model.config.to_json_string(use_diff=False),
        str(sum(parameter.numel() for parameter in model.parameters())),
        f"{device.type} {name} {platform.node()} {torch.get_num_threads()}",
        f"{model.dtype} {batch_size}",
        f"{torch.__version__} {transformers.__version__}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def read(path: Path) -> Any:
    """What was kept; None where nothing is, or nothing that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(path: Path, found: Any) -> None:
    """Keep it; a folder that cannot be written only costs the time to find it out again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return
