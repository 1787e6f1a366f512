"""A package that looks like the vLLM we were built for, as far as it is looked at."""

from __future__ import annotations

from pathlib import Path

MAKES = "def create_custom_proposer(vllm_config): ...\n"
CALLS = """
class GPUModelRunner:
    def propose_draft_token_ids(self, sampled_token_ids, slot_mappings):
        if self.speculative_config.method == "ngram":
            return self.drafter.propose(1, sampled_token_ids)
        elif self.speculative_config.method == "custom_class":
            return self.drafter.propose(
                sampled_token_ids,
                self.input_batch.num_tokens_no_spec,
                self.input_batch.token_ids_cpu,
                slot_mappings=slot_mappings,
            )
"""
RANK = "def get_tensor_model_parallel_rank(): return {rank}\n"


def install(
    folder: Path,
    *,
    package: str = "vllm",
    version: str = "0.32.0",
    makes: str = MAKES,
    calls: str = CALLS,
    rank: int = 0,
) -> None:
    """Write the package, and what an installer would note of it, into a folder of sys.path."""
    files = {
        "vllm/__init__.py": "raise ImportError('vLLM was loaded')\n" if rank < 0 else "",
        "vllm/v1/spec_decode/custom_class_proposer.py": makes,
        "vllm/v1/worker/gpu_model_runner.py": calls,
        "vllm/distributed/__init__.py": "",
        "vllm/distributed/parallel_state.py": RANK.format(rank=rank),
        f"{package.replace('-', '_')}-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        ),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
