"""One thread for torch: tiny models are slower with two, and equal bits need equal work."""

import torch

torch.set_num_threads(1)
