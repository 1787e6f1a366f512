"""Where a model's files are: in a folder, on the hub, or in the hub's cache; answered within seconds."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import UnsupportedModelError

_PATIENCE_S = 5.0


def is_local(name: str) -> bool:
    """Whether `from_pretrained(name)` is to look at this machine's files only.

    `from_pretrained` asks a hub that it cannot reach again and again; this asks once.

    **Raises:** `UnsupportedModelError` where there is no such folder, and no such model on the hub or in
    its cache.
    """
    path = Path(name)
    if path.is_dir():
        return True
    if path.is_file():
        raise UnsupportedModelError(
            f"{name!r} is a file; give the folder that holds the model, or a file that ends in .gguf"
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise UnsupportedModelError(f"there is no folder {name!r}; give a folder, a known name or 'smollm2'")
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
        if not constants.HF_HUB_OFFLINE:
            HfApi().model_info(name, timeout=_PATIENCE_S)
            return False
        reason = "HF_HUB_OFFLINE is set"
    except HFValidationError:
        raise UnsupportedModelError(
            f"{name!r} is neither a folder nor a model's name; give a folder, a known name or 'smollm2'"
        ) from None
    except RepositoryNotFoundError:
        raise UnsupportedModelError(
            f"there is no folder {name!r}, and no model of that name on the hub that you may read; "
            "give a folder, a known name or 'smollm2'"
        ) from None
    except Exception as error:
        reason = f"the hub cannot be reached: {type(error).__name__}"
    if cached:
        return True
    raise UnsupportedModelError(
        f"there is no folder {name!r}, and no model of that name in the hub's cache ({reason}); "
        "give a folder, a known name or 'smollm2'"
    )
