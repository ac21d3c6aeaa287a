"""A user's own environment and workflow, and evaluations of what they trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import cli
from lockstep.compose import from_yaml
from lockstep.telemetry import read_metrics
from tests.training import helpers
from tests.training.environments import Recording

OWN_MODULE = """
import jax.numpy as jnp
from lockstep.workflows.on_policy import OnPolicyWorkflow
from tests import toy_envs

told = []


def goal(limit=5):
    return toy_envs.random_goal(limit)


class Own(OnPolicyWorkflow):
    def step(self, state):
        metrics, state = super().step(state)
        return metrics | {"twice_the_loss": 2 * metrics["loss"]}, state

    def evaluate(self, state):
        metrics, state = super().evaluate(state)
        told.append(int(state.update))
        return metrics, state
"""


def test_environment_and_workflow_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = helpers.train(
        "own_module:goal",
        tmp_path / "run",
        workflow_cls="own_module.Own",
        max_iterations=2,
        **{"env.kwargs": {"limit": 4}},
    )
    assert (result.task, result.status, result.updates) == ("own_module:goal", "completed", 2)
    # Goals are uniform in [0, 1) and pay 4 times: 4 x (0.5 +- 0.29 / sqrt(8)).
    assert 1.0 < result.return_mean < 3.0
    told = sys.modules.pop("own_module").told
    assert told == [2]
    for line in read_metrics(tmp_path / "run"):  # the float32 loss, doubled exactly
        assert line["twice_the_loss"] == 2 * line["loss"]
    cfg = from_yaml(tmp_path / "run" / "config.yaml")
    assert (cfg.task, cfg.workflow_cls) == ("own_module:goal", "own_module.Own")
    again = lockstep.evaluate(tmp_path / "run")
    assert again.return_mean == result.return_mean
    assert again.length_mean == 4.0


def test_a_state_with_an_empty_array_trains_and_resumes(tmp_path: Path) -> None:
    task = "tests.training.environments:empty_leaf"
    helpers.train(task, tmp_path / "run", max_iterations=5)
    resumed = lockstep.train(resume=tmp_path / "run", max_iterations=6)
    assert (resumed.updates, resumed.return_mean) == (6, 5.0)


def test_what_the_host_loop_asks_of_a_workflow(straight: tuple[Path, Any], tmp_path: Path) -> None:
    Recording.calls.clear()
    own = helpers.train(
        "cartpole",
        tmp_path / "run",
        workflow_cls="tests.training.environments:Recording",
        eval_interval=10,
        num_devices=2,
    )
    one, mid, last = ["step"] * 10, ["evaluate 10"], ["evaluate 20"]
    assert Recording.calls == ["setup", *one, *mid, *one, *last]
    assert own.params_sha256 == straight[1].params_sha256


def test_evaluations_are_repeatable(straight: tuple[Path, Any]) -> None:
    run, result = straight
    before = helpers.state_of(run)[0]
    first, second = lockstep.evaluate(run), lockstep.evaluate(run)
    assert first == second
    assert (first.return_mean, first.return_std) == (result.return_mean, result.return_std)
    assert first.params_sha256 == result.params_sha256
    assert (first.task, first.algorithm, first.update) == ("cartpole", "ppo", 20)
    assert (first.deterministic, first.eval_episodes, first.nan_episodes) == (True, 8, 0)
    assert first.return_min <= first.return_mean <= first.return_max
    assert first.length_mean == first.return_mean  # CartPole pays 1 a step
    # The normaliser is frozen, and nothing else of the run is touched.
    assert helpers.different_leaves(helpers.state_of(run)[0], before) == []

    sampled = lockstep.evaluate(run, stochastic=True)
    assert sampled == lockstep.evaluate(run, stochastic=True)
    assert not sampled.deterministic
    assert sampled.return_mean != first.return_mean


def test_evaluation_is_the_same_on_one_device_and_two(
    straight: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty episodes do not fill the blocks of either device count."""
    two = lockstep.evaluate(straight[0], episodes=40)
    from lockstep import evaluating

    every_device = evaluating.start_devices
    monkeypatch.setattr(evaluating, "start_devices", lambda cfg: every_device(cfg)[:1])
    one = lockstep.evaluate(straight[0], episodes=40)
    assert two.eval_episodes == one.eval_episodes == 40
    for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-6), name


def test_evaluate_command(straight: tuple[Path, Any], capfd: pytest.CaptureFixture[str]) -> None:
    run, result = straight
    with pytest.raises(SystemExit) as left:
        cli.main(["evaluate", str(run)])
    assert left.value.code == 0
    rows = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())
    assert rows["return"] == f"{result.return_mean:.2f} +- {result.return_std:.2f}"
    assert (rows["task"], rows["episodes"]) == ("cartpole", "8")


@pytest.mark.slow
def test_evaluate_command_on_one_device_and_two(straight: tuple[Path, Any]) -> None:
    run, _ = straight
    told = []
    for devices in ("1", "2"):
        child = helpers.start_lockstep(
            "evaluate", str(run), "--episodes", "40", LOCKSTEP_CPU_DEVICES=devices
        )
        ended = helpers.Ended(child)
        assert ended.code == 0, ended.err
        told.append(ended.out)
    assert told[0] == told[1]
    assert "episodes    40" in told[0]
