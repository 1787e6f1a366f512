"""Where a model runs: not always where its weights are, nor in one process."""

from __future__ import annotations

from typing import Any

from outrider.errors import UnsupportedModelError


def device_of(model: Any) -> Any:
    """The `torch.device` that a model's inputs belong on.

    Weights that accelerate keeps elsewhere, on a disk say, until a layer needs them are on the meta device
    meanwhile; their layers' hooks name the device that they run on.

    **Raises:** `UnsupportedModelError` for a model that has no weights anywhere.
    """
    if model.device.type != "meta":
        return model.device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            device = getattr(part, "execution_device", None)
            if device is not None:
                return type(model.device)(device)
    raise UnsupportedModelError(
        f"{type(model).__name__} has no weights, only their shapes on the meta device; load them first"
    )


def num_ranks(model: Any) -> int:
    """Processes that a tensor-parallel model is spread over. Some versions of transformers don't count them."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in model.parameters())
    return max(int(getattr(model, "_tp_size", None) or 1), *(mesh.size() for mesh in meshes if mesh), 1)
