"""Where a model's inputs go, which is not always where its weights are."""

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
