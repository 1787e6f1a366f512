"""One thread for torch: tiny models are slower with two, and equal bits need equal work. No user's cache folder."""

import pytest
import torch

from outrider.target import kept

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _found_out_in_a_folder_of_its_own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "cache_folder", lambda: folder)
        yield
