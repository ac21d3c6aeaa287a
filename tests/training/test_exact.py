"""``reduction=exact``: the same parameters' hash on any devices and any split into processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

import lockstep
from tests.training import helpers

UPDATES = 50


class Setting(NamedTuple):
    """A task and what differs from the small configuration."""

    task: str
    changes: dict[str, Any]


COMMON = {
    "reduction": "exact",
    "max_iterations": UPDATES,
    "checkpoint_interval": 25,
    "algo.lr_schedule": "constant",
}
CARTPOLE = Setting("cartpole", COMMON)
LINEAR = {"algo.lr_schedule": "linear", "algo.hidden_sizes": [8, 8], "algo.activation": "relu"}
PENDULUM = Setting("pendulum", COMMON | LINEAR)
ONE_BLOCK_A_DEVICE = Setting("pendulum", PENDULUM.changes | {"num_blocks": 2})
BOTH = pytest.mark.parametrize(
    "setting", [CARTPOLE, pytest.param(PENDULUM, marks=pytest.mark.slow)], ids=lambda s: s.task
)
_on_one: dict[str, str] = {}


def hash_on(setting: Setting, folder: Path, devices: int) -> str:
    """The parameters' hash after all updates on so many devices."""
    result = helpers.train(setting.task, folder, **setting.changes, num_devices=devices)
    assert (result.devices, result.updates, result.reduction) == (devices, UPDATES, "exact")
    return result.params_sha256


def hash_on_one(setting: Setting, folder: Path) -> str:
    """The hash on one device, computed once."""
    key = repr(setting)
    if key not in _on_one:
        _on_one[key] = hash_on(setting, folder / "one", 1)
    return _on_one[key]


@BOTH
def test_one_device_and_two(setting: Setting, tmp_path: Path) -> None:
    twice = [hash_on(setting, tmp_path / name, 2) for name in ("first", "second")]
    assert [hash_on_one(setting, tmp_path)] * 2 == twice


@BOTH
def test_two_processes(setting: Setting, tmp_path: Path) -> None:
    """Each of one device; stopped after 25 updates, one process alone gets to the same end."""
    run = tmp_path / "run"
    ranks = helpers.run_ranks(setting.task, run, **setting.changes)
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
    results = [helpers.last_json(rank.out) for rank in ranks]
    assert [result["params_sha256"] for result in results] == [hash_on_one(setting, tmp_path)] * 2
    # Rank 0 alone writes and speaks; each rank has its heartbeat.
    assert helpers.read_json(run / "summary.json") == results[0]
    assert (results[0]["processes"], results[0]["devices"]) == (2, 2)
    assert "environments: 32 per device x 2 = 64" in ranks[0].err
    assert "environments" not in ranks[1].err
    beats = [helpers.read_json(run / "ranks" / f"{rank}.heartbeat") for rank in (0, 1)]
    assert [(beat["rank"], beat["update"]) for beat in beats] == [(0, UPDATES), (1, UPDATES)]
    assert beats[0]["pid"] != beats[1]["pid"]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == UPDATES

    half = helpers.copy_stopped(run, tmp_path / "half", 25)
    alone = lockstep.train(resume=half, num_devices=1)
    assert (alone.processes, alone.params_sha256) == (1, results[0]["params_sha256"])
    assert helpers.different_leaves(helpers.state_of(half)[0], helpers.state_of(run)[0]) == []


@pytest.mark.slow
def test_resumed_by_two_processes(straight: tuple[Path, Any], tmp_path: Path) -> None:
    half = helpers.copy_stopped(straight[0], tmp_path / "half", 10)
    text = (half / "config.yaml").read_text()
    (half / "config.yaml").write_text(text.replace("num_devices: 2", "num_devices: null"))
    ranks = helpers.run_ranks("cartpole", half, resume=True)
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
    for rank in ranks:
        assert helpers.last_json(rank.out)["params_sha256"] == straight[1].params_sha256


@pytest.mark.slow
def test_one_block_a_device(tmp_path: Path) -> None:
    hashes = [hash_on(ONE_BLOCK_A_DEVICE, tmp_path / str(n), n) for n in (1, 2)]
    assert hashes[0] == hashes[1]


@pytest.mark.slow
@pytest.mark.devices
@pytest.mark.parametrize("setting", [CARTPOLE, PENDULUM], ids=lambda s: s.task)
def test_four_devices(setting: Setting, tmp_path: Path) -> None:
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    assert hash_on(setting, tmp_path / "four", 4) == hash_on_one(setting, tmp_path)


def test_environments_and_actions_differ_between_devices(straight: tuple[Path, Any]) -> None:
    """No two of the 64 environments show the same observation: none repeats another's keys."""
    state, _ = helpers.state_of(straight[0])
    shown = {helpers.numbers(obs).tobytes() for obs in state.blocks.envs.obs.reshape(64, -1)}
    assert len(shown) == 64


def test_two_processes_started_apart_are_bit_equal(
    straight: tuple[Path, Any], tmp_path: Path
) -> None:
    """A process of its own, long after the first: nothing comes from the clock or the process."""
    argv = ["train", "cartpole", "--run-dir", "run", "--num-devices", "2", *helpers.words()]
    ended = helpers.Ended(helpers.start_lockstep(*argv))
    assert ended.code == 0, ended.err
    summary = helpers.read_json(tmp_path / "run" / "summary.json")
    assert summary["params_sha256"] == straight[1].params_sha256
    assert summary["return_mean"] == straight[1].return_mean
    assert (
        helpers.different_leaves(
            helpers.state_of(tmp_path / "run")[0], helpers.state_of(straight[0])[0]
        )
        == []
    )


def test_other_seeds_are_other_runs(straight: tuple[Path, Any], tmp_path: Path) -> None:
    other = helpers.train("cartpole", tmp_path / "run", num_devices=2, seed=1)
    assert other.params_sha256 != straight[1].params_sha256


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_every_activation_has_the_same_bits(activation: str, tmp_path: Path) -> None:
    keys = {"algo.activation": activation, "max_iterations": 3}
    one, two = (
        helpers.train("pendulum", tmp_path / str(n), num_devices=n, **keys).params_sha256
        for n in (1, 2)
    )
    assert one == two
