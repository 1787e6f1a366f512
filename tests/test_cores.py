"""How many threads: cores, not their threads, and no more than the process's share."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight processors, two to a core, all open to the process; no group's limit."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{cpu // 2}\n")
    monkeypatch.setattr(cores, "_CPUS", tmp_path)
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "group")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "group").mkdir()
    return tmp_path


def test_two_threads_of_one_core_are_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.physical_cores() == 4
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert cores.physical_cores() == 2


@pytest.mark.parametrize(("limit", "number"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 4)])
def test_a_groups_share_is_the_most(machine: Path, limit: str, number: int) -> None:
    (machine / "group" / "cpu.max").write_text(limit)
    assert cores.physical_cores() == number


def test_a_group_of_the_first_version(machine: Path) -> None:
    folder = machine / "group" / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("300000")
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cores.physical_cores() == 3
    (folder / "cpu.cfs_quota_us").write_text("-1")
    assert cores.physical_cores() == 4


def test_processors_that_tell_nothing_are_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_CPUS", machine / "nowhere")
    assert cores.physical_cores() == 8


def test_the_users_own_number_stands(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cores.use_physical_cores()
    assert torch.get_num_threads() == before
