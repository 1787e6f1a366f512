"""How many threads a model's forward is given: the physical cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")


def physical_cores() -> int | None:
    """Cores this process may run on, two threads of one core counted once, within its group's share.

    torch counts the machine's cores, which in a container with a share of them is too many: threads that
    wait for each other are slower than fewer. None where the system does not say (not Linux).
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = _CPUS / f"cpu{cpu}" / "topology"
        package, core = (_number(topology / name) for name in ("physical_package_id", "core_id"))
        cores.add((package, cpu if core is None else core))
    return max(1, min(len(cores), _share() or len(cores)))


def use_physical_cores() -> None:
    """Give torch's operators that many threads, for the whole process; OMP_NUM_THREADS goes before it."""
    import torch

    number = physical_cores()
    if number is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(number)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operators on the calling thread alone; for work so short that waiting for others is the longer part.

    On busy cores a second thread comes up to 20 ms late, which is a thousand passes over a row of scores.
    """
    import torch

    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def _share() -> int | None:
    """Whole cores that the process's control group (version 2, or 1) grants; None where it sets no limit."""
    try:
        quota, period = (_GROUPS / "cpu.max").read_text().split()
    except (OSError, ValueError):
        folder = _GROUPS / "cpu"
        quota, period = (str(_number(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return -(-int(quota) // int(period))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
