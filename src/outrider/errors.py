"""Every error that Outrider raises on purpose.

    OutriderError
    ├── OptionError (ValueError)       an argument, option or combination that cannot work
    │   └── UnknownNameError           no generator, verifier or controller of that name
    ├── UnsupportedModelError (ValueError)  what this model or its cache cannot do
    ├── GeneratorError                 a candidate generator broke its contract, or raised
    ├── NonFiniteLogitsError           the target returned NaN logits
    └── FileFormatError (ValueError)   a file that is damaged, foreign or of another version

Catch `OutriderError` for all of them. Each message is one sentence: what, why, what to do.
"""


class OutriderError(Exception):
    """Base of all errors raised by Outrider."""


class OptionError(OutriderError, ValueError):
    """An argument, an option or a combination of them that cannot work."""


class UnknownNameError(OptionError):
    """No generator, verifier or controller has that name."""


class UnsupportedModelError(OutriderError, ValueError):
    """The model, or the cache in use, cannot do what was asked."""


class GeneratorError(OutriderError):
    """A candidate generator raised, or returned something that is not a proposal."""


class NonFiniteLogitsError(OutriderError):
    """The target returned NaN where logits belong."""


class FileFormatError(OutriderError, ValueError):
    """A file is damaged, of another kind, of another version, or made for another tokenizer."""
