"""The default command learns: tuned defaults, deterministic evaluation over whole episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep


def learn(task: str, seed: int, folder: Path, algo: str = "ppo") -> float:
    """The final evaluation's mean return of one run with the tuned defaults."""
    result = lockstep.train(task, algo=algo, seed=seed, run_dir=folder, tensorboard=False)
    assert result.status == "completed"
    assert result.eval_episodes == 128
    assert result.return_mean is not None
    return result.return_mean


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_cartpole(seed: int, tmp_path: Path) -> None:
    assert learn("cartpole", seed, tmp_path / "run") >= 475.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_ppo_learns_pendulum(seed: int, tmp_path: Path) -> None:
    assert learn("pendulum", seed, tmp_path / "run") >= -250.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_acrobot(seed: int, tmp_path: Path) -> None:
    assert learn("acrobot", seed, tmp_path / "run") >= -100.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_the_inverted_pendulum(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("brax")
    assert learn("inverted_pendulum", seed, tmp_path / "run") >= 950.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a2c_learns_cartpole(seed: int, tmp_path: Path) -> None:
    assert learn("cartpole", seed, tmp_path / "run", algo="a2c") >= 400.0
