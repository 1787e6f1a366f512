"""One thread for torch: tiny models are slower with two, and equal bits need equal work. No user's cache folder."""

import pytest
import torch

from outrider.target import exactness

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_exactness_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactness, "cache_folder", lambda: folder)
        yield
