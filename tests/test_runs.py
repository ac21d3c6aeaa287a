"""Where runs go, and what may be given anew when one is resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.compose import compose, from_kwargs, to_yaml
from lockstep.config import RunConfig
from lockstep.devices import Devices, expected_devices, nvidia_devices
from lockstep.errors import UsageError
from lockstep.runs import default_run_dir, find_run, new_run_dir


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The sentence a call is refused with."""
    with pytest.raises(UsageError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def make_run(folder: Path, cfg: RunConfig, commits: tuple[int, ...] = (3,)) -> Path:
    """A run's folder with its configuration and (empty) commits."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(cfg))
    for update in commits:
        (folder / "checkpoints" / str(update)).mkdir(parents=True)
    return folder


def test_a_new_run_has_a_folder_of_its_own() -> None:
    cfg = compose("cartpole", "a2c", ["seed=4"])
    folder = default_run_dir(cfg, now=0.0)
    assert folder.parts[:3] == ("runs", "cartpole", "a2c")
    assert folder.name.endswith("-seed4")
    folder.mkdir(parents=True)
    assert default_run_dir(cfg, now=0.0).name == folder.name + "-2"


def test_a_run_folder_must_be_new_or_empty(tmp_path: Path) -> None:
    cfg = compose("cartpole")
    assert new_run_dir(cfg, tmp_path / "new") == tmp_path / "new"
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert new_run_dir(cfg, tmp_path / "empty") == tmp_path / "empty"
    (tmp_path / "empty" / "file").write_text("x")
    assert "exists and is not empty" in refusal(new_run_dir, cfg, tmp_path / "empty")
    assert "is not a folder" in refusal(new_run_dir, cfg, tmp_path / "empty" / "file")


def test_only_a_run_with_a_checkpoint_is_resumed(tmp_path: Path) -> None:
    cfg = compose("cartpole")
    assert "there is no run" in refusal(find_run, tmp_path / "nowhere")
    assert "it has no config.yaml" in refusal(find_run, tmp_path)
    bare = make_run(tmp_path / "bare", cfg, commits=())
    assert "has no checkpoint to go on from" in refusal(find_run, bare)
    whole = make_run(tmp_path / "whole", cfg)
    assert find_run(whole) == whole


def test_latest_is_the_newest_run_of_the_task(tmp_path: Path) -> None:
    assert "there is no run under 'runs'" in refusal(find_run, "latest")
    cartpole, pendulum = compose("cartpole"), compose("pendulum")
    root = Path("runs")
    make_run(root / "cartpole/ppo/20260101-000000-seed0", cartpole)
    newer = make_run(root / "cartpole/a2c/20260102-000000-seed0", cartpole)
    newest = make_run(root / "pendulum/ppo/20260103-000000-seed0", pendulum)
    os.utime(root / "cartpole/ppo/20260101-000000-seed0/config.yaml")
    assert find_run("latest") == newest
    assert find_run("latest", "cartpole") == newer
    assert "no run of task 'acrobot'" in refusal(find_run, "latest", "acrobot")


def test_what_may_be_given_anew_on_resume() -> None:
    base = compose("cartpole", overrides=["num_envs=64", "max_iterations=4"])
    resumed = from_kwargs(base=base, max_iterations=8, num_devices=1, eval_episodes=16)
    assert (resumed.max_iterations, resumed.num_devices, resumed.eval_episodes) == (8, 1, 16)
    assert (resumed.task, resumed.num_envs, resumed.num_blocks) == ("cartpole", 64, 8)
    assert from_kwargs(base=base) == base
    assert from_kwargs("CartPole-v1", base=base, num_envs=64, algo="ppo") == base


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"num_envs": 128}, "num_envs=128 cannot be changed on resume: the run has num_envs=64"),
        ({"algo.gamma": 0.9}, "algo.gamma=0.9 cannot be changed on resume"),
        ({"seed": 1}, "seed=1 cannot be changed on resume: the run has seed=0"),
        ({"algo": "a2c"}, "algo.name=a2c"),
        ({"task": "pendulum"}, "task=pendulum cannot be changed on resume"),
        ({"env.kwargs.x": 1}, "env.kwargs"),
        ({"algo.gama": 0.9}, "unknown key 'algo.gama': did you mean 'algo.gamma'?"),
    ],
)
def test_what_may_not_be_changed_on_resume(keywords: dict[str, Any], sentence: str) -> None:
    base = compose("cartpole", overrides=["num_envs=64"])
    assert refusal(from_kwargs, base=base, **keywords).startswith(sentence)


def test_nvidia_devices_are_counted_without_a_driver(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).write_text("")
    counts = {None: 3, "": 0, "-1": 0, "0": 1, "2,0": 2, "0,7,1": 1, "GPU-abc,GPU-def": 2}
    for visible, count in counts.items():
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert nvidia_devices(environ, tmp_path) == count, visible


def test_cpu_devices_expected() -> None:
    assert expected_devices({"JAX_PLATFORMS": "cpu", "LOCKSTEP_CPU_DEVICES": "3"}) == Devices(
        "cpu", 3
    )
    flag = "--xla_force_host_platform_device_count=5"
    assert expected_devices({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag}) == Devices("cpu", 5)
    cores = len(os.sched_getaffinity(0))
    assert expected_devices({"JAX_PLATFORMS": "cpu"}) == Devices("cpu", cores)


def test_python_face_refuses_like_the_command_line(tmp_path: Path) -> None:
    assert refusal(lockstep.train, "cartpol").startswith("unknown task 'cartpol'")
    assert refusal(lockstep.train, "cartpole", num_env=5).startswith("unknown key 'num_env'")
    assert refusal(lockstep.train, "cartpole", resume="nowhere").startswith("there is no run")
    assert "not both" in refusal(lockstep.train, resume="latest", run_dir="x")
    assert refusal(lockstep.evaluate, "nowhere").startswith("there is no run")
    assert "episodes=0 is out of range" in refusal(lockstep.evaluate, "nowhere", episodes=0)
    assert list(tmp_path.iterdir()) == []
