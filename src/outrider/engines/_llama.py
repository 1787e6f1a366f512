"""One sequence in a llama-cpp-python `Llama`: forwards over new tokens, and rollback, through its C API."""

from __future__ import annotations

import ctypes
from typing import Any, final

import numpy as np
import numpy.typing as npt

from outrider.errors import OptionError, UnsupportedModelError
from outrider.types import Floats, Ids

SUPPORTED = ("0.3.36", "0.4")
# What is used of the Llama object; checked by name before anything runs.
_MEMBERS = ("ctx", "model", "n_batch", "n_tokens", "input_ids", "n_ctx", "n_vocab", "tokenize", "detokenize")


def check_version(module: Any) -> None:
    """**Raises:** `OptionError` for a llama-cpp-python outside the range this was written for."""
    version = tuple(int(part) for part in module.__version__.split(".")[:3] if part.isdigit())
    low, high = (tuple(int(part) for part in bound.split(".")) for bound in SUPPORTED)
    if not low <= version < high:
        raise OptionError(
            f"llama-cpp-python {module.__version__} is not supported; "
            f"install one from {SUPPORTED[0]} up to, without, {SUPPORTED[1]}"
        )


@final
class LlamaSequence:
    """Sequence 0 of a `Llama`, kept so that the object's own methods go on from what is left here.

    **Arguments:**

    - `llama`: A `llama_cpp.Llama`, with or without `logits_all`.

    **Raises:** `UnsupportedModelError` where rejected candidates could not be taken back, or the model
    does not generate; `OptionError` for another version of the package.
    """

    def __init__(self, llama: Any) -> None:
        import llama_cpp

        check_version(llama_cpp)
        missing = [name for name in _MEMBERS if not hasattr(llama, name)]
        if missing:
            raise OptionError(
                f"{type(llama).__name__} has no {missing[0]}, so it is no Llama of llama-cpp-python; pass one"
            )
        self._api = llama_cpp
        self._llama = llama
        self._check_model()
        self._memory = llama_cpp.llama_get_memory(llama.ctx)
        self._vocab = llama_cpp.llama_model_get_vocab(llama.model)
        self._piece = ctypes.create_string_buffer(64)
        self.vocab_size = int(llama.n_vocab())
        self.max_length = min(int(llama.n_ctx()), llama.input_ids.size)  # n_ctx() may be padded
        self.max_forward = int(llama.n_batch)
        self._batch = llama_cpp.llama_batch_init(self.max_forward, 0, 1)
        shape = (self.max_forward,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(
            ctypes.cast(self._batch.logits, ctypes.POINTER(ctypes.c_int8)), shape
        )
        for i in range(self.max_forward):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0

    def _check_model(self) -> None:
        api, model = self._api, self._llama.model
        for test, why in (
            ("llama_model_is_recurrent", "keeps a recurrent state that cannot be rolled back"),
            ("llama_model_is_hybrid", "has recurrent layers, whose state cannot be rolled back"),
            ("llama_model_is_diffusion", "is a diffusion model, which does not go token by token"),
            ("llama_model_has_encoder", "has an encoder, and one sequence of tokens is verified here"),
        ):
            if getattr(api, test)(model):
                raise UnsupportedModelError(
                    f"candidates cannot be verified by this GGUF model, since it {why}; use Llama's own generate()"
                )

    def close(self) -> None:
        """Free the batch. The object's cache stays."""
        if self._batch is not None:
            self._api.llama_batch_free(self._batch)
            self._batch = None

    def __enter__(self) -> LlamaSequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, ids: Ids) -> Ids:
        """Roll back to the longest prefix of `ids` that is cached; what is left to run, at least one token."""
        held = int(self._llama.n_tokens)
        most = min(held, ids.size - 1)
        different = np.flatnonzero(self._llama.input_ids[:most] != ids[:most])
        kept = int(different[0]) if different.size else most
        if not self._remove(kept):
            self._api.llama_memory_clear(self._memory, True)
            self._llama.n_tokens = 0
            return ids
        return ids[kept:]

    def forward(self, tokens: Ids, every: bool) -> Floats:
        """Run tokens after what is cached.

        **Returns:** (n, V) float32 logits of each token, or (1, V) of the last one, valid until the next
        forward; `every` is for at most `max_forward` tokens.
        """
        for start in range(0, tokens.size, self.max_forward):
            part = tokens[start : start + self.max_forward]
            length, size = int(self._llama.n_tokens), part.size
            self._tokens[:size] = part
            self._positions[:size] = np.arange(length, length + size)
            self._wanted[:size] = every
            self._wanted[size - 1] = start + size == tokens.size
            self._batch.n_tokens = size
            status = self._api.llama_decode(self._llama.ctx, self._batch)
            if status != 0:
                self._remove(length)
                raise UnsupportedModelError(
                    f"llama_decode failed with status {status} at position {length}; "
                    "give Llama a larger n_ctx, or a smaller n_batch"
                )
            self._llama.input_ids[length : length + size] = part
            self._llama.n_tokens = length + size
        self._llama._requires_eval = True  # its own loop must not take these logits for its prompt's
        rows = tokens.size if every else 1
        pointer = self._api.llama_get_logits(self._llama.ctx)
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, (rows * self.vocab_size,))
        return logits.reshape(rows, self.vocab_size)

    def crop(self, length: int) -> None:
        """Forget what is cached beyond `length` tokens."""
        if length < self._llama.n_tokens and not self._remove(length):
            raise UnsupportedModelError(
                "llama.cpp could not take back rejected candidates from this model's cache; "
                "use Llama's own generate()"
            )

    def _remove(self, length: int) -> bool:
        done = bool(self._api.llama_memory_seq_rm(self._memory, 0, length, -1))
        if done:
            self._llama.n_tokens = length
        return done

    def piece(self, token: int) -> bytes:
        """The token's bytes; none for control tokens."""
        size = self._api.llama_token_to_piece(self._vocab, token, self._piece, len(self._piece), 0, False)
        if size < 0:
            self._piece = ctypes.create_string_buffer(-size)
            return self.piece(token)
        return self._piece.raw[:size]

    def ends(self, token: int) -> bool:
        """Whether the model ends its text with this token."""
        return bool(self._api.llama_vocab_is_eog(self._vocab, token))
