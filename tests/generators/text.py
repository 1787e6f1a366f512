"""A tokenizer whose text can be split in more than one way."""

import functools


@functools.cache
def byte_tokenizer():
    """One token a byte, a few merges, and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("n", "a"), ("m", "e"), ("na", "me"), ("r", "e"), ("re", "d"), ("e", "n"), ('"', ":")]
    vocab = {text: i for i, text in enumerate([*alphabet, *(a + b for a, b in merges), "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
