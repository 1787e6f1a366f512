"""Which ids stand for what a model sees and hears: the prompt holds them, and no candidate is one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from outrider.types import Ids

# Such as image_token_id, audio_token_index, vision_start_token_id, boi_token_id, image_token_ids.
_NAME = re.compile(
    r"(\w+_)?(image|video|frame|vision|visual|audio|speech|boi|eoi|boa|eoa|bov|eov)(_\w+)?_token_(id|index)s?"
)


def placeholder_ids(config: Any) -> Ids:
    """(k,) int64, ascending. The ids that a model's configuration names for images, videos and sound.

    Those of its parts with vocabularies of their own, a speech decoder's, are none of the text's.
    """
    fields = vars(config) | vars(config.get_text_config(decoder=True))
    named = [value for name, value in fields.items() if _NAME.fullmatch(name)]
    ids = [id_ for value in named for id_ in (value if isinstance(value, list | tuple) else [value])]
    return np.array(sorted({id_ for id_ in ids if isinstance(id_, int) and id_ >= 0}), np.int64)
