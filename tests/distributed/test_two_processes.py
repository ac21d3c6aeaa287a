"""Two processes joined by ``jax.distributed`` over localhost, on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from lockstep.checkpoint import Checkpoints, params_sha256
from lockstep.distributed import get_global_ranks, get_process_id, is_dist_initialized
from tests.distributed.two_process_child import mesh_of, state_on

CHILD = Path(__file__).with_name("two_process_child.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run_two(scenario: str, folder: Path, devices: int, wait_for: tuple[int, ...]) -> list[Any]:
    """Start both processes, wait for those named, kill what is left; their JSON objects."""
    port = str(free_port())
    children = []
    try:
        for rank in (0, 1):
            command = [sys.executable, str(CHILD), port, str(rank), scenario, str(folder)]
            children.append(
                subprocess.Popen(
                    [*command, str(devices)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "XLA_FLAGS": ""},
                )
            )
        results = []
        for rank in wait_for:
            out, err = children[rank].communicate(timeout=150)
            assert children[rank].returncode == 0, err
            results.append(json.loads(out.splitlines()[-1]))
        return results
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_act_as_one(tmp_path: Path, devices: int) -> None:
    results = run_two("everything", tmp_path, devices, wait_for=(0, 1))
    assert [result["process"] for result in results] == [0, 1]
    assert [result["initialized"] for result in results] == [True, True]
    if devices == 1:
        assert [result["ranks"] for result in results] == [[0], [1]]
    else:
        assert [result["ranks"] for result in results] == [[0, 1], [2, 3]]

    world = 2 * devices
    for result in results:
        assert result["collectives"] == {
            "psum": 12.0,
            "pmean": 12.0 / world,
            "pmax": 6.0,
            "pmin": 1.0,
            "all_gather": [1.0, 2.0, 3.0, 6.0],
        }
        assert result["gradients"] == [6.0, -1.0]  # mean of 2 x; 2 - mean of x

    keys = [key for result in results for key in result["local_keys"]]
    expected = [jax.random.fold_in(jax.random.key(3), i) for i in range(world)]
    np.testing.assert_array_equal(
        np.concatenate(keys), np.stack([jax.random.key_data(key) for key in expected])
    )
    assert results[0]["save_seconds"] < 10.0

    # What two processes saved, this one process restores on its own devices.
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.updates() == [1, 2]
    assert checkpoints.partial() == []
    for count in (1, 2):
        wanted = state_on(mesh_of(jax.devices()[:count]))
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), wanted
        )
        restored, host = checkpoints.restore(2, target)
        assert host == {"update": 2}
        for name in ("obs", "empty"):
            np.testing.assert_array_equal(restored[name], wanted[name])
        digest = params_sha256(restored)
        assert digest == params_sha256(wanted)
        for result in results:
            assert result["sha256"] == result["restored_sha256"] == digest
            assert result["host"] == {"update": 2}
            assert result["updates"] == [1, 2]
            assert result["refused"] == (
                "checkpoint 3 not written: obs has values that are not finite"
            )


def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    (result,) = run_two("late", tmp_path, 1, wait_for=(0,))
    assert "process 1 did not arrive within 2 s" in result["told"]
    assert result["latest"] is None
    assert 1.0 <= result["seconds"] < 15.0


def test_one_process() -> None:
    assert not is_dist_initialized()
    assert get_process_id() == 0
    assert get_global_ranks().tolist() == list(range(jax.device_count()))
