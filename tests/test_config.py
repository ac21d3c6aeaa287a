"""The keys of the configuration: types, ranges, sizes; no JAX is needed for any of it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from lockstep.config import (
    ALGORITHMS,
    A2CConfig,
    EnvConfig,
    PPOConfig,
    RunConfig,
    derive_num_blocks,
    devices_used,
    plan_devices,
    validate,
)
from lockstep.errors import (
    CheckpointError,
    StopRequested,
    TrainingFailed,
    UsageError,
    nearest,
    unknown,
)
from lockstep.preview import preview
from lockstep.schema import keys
from lockstep.sizes import envs_for_devices


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The sentence a call is refused with; it is one line."""
    with pytest.raises(UsageError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Errors


def test_exit_codes_of_the_errors() -> None:
    assert UsageError("x").exit_code == 2
    assert isinstance(UsageError("x"), ValueError)
    assert TrainingFailed("x").exit_code == 1
    assert StopRequested(143, 7).exit_code == 143
    assert str(StopRequested(130, 7)) == "stopped on request after update 7"
    failure = CheckpointError("no space left", "/somewhere", 28)
    assert (failure.path, failure.errno, failure.exit_code) == ("/somewhere", 28, 1)


def test_the_sentence_for_an_unknown_name() -> None:
    assert str(unknown("task", "cartpol", ["pendulum", "cartpole"])) == (
        "unknown task 'cartpol': did you mean 'cartpole'? (lockstep list tasks shows all)"
    )


def test_nearest_ignores_case_and_dashes_and_always_answers() -> None:
    assert nearest("Num-Envs", ["num_envs", "num_blocks"]) == "num_envs"
    assert nearest("zzz", ["b", "a"]) == nearest("zzz", ["a", "b"]) == "a"


# Types and ranges


def test_defaults() -> None:
    cfg = RunConfig()
    assert (cfg.num_envs, cfg.algo.rollout_length, cfg.steps_per_update) == (2048, 32, 65536)
    assert cfg.updates == 31  # 2,000,000 / 65,536 rounded up
    assert replace(cfg, max_iterations=7).updates == 7
    assert (A2CConfig().num_epochs, A2CConfig().num_minibatches) == (1, 1)


def test_configuration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        RunConfig().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: PPOConfig(gamma=1.5),
            "algo.gamma=1.5 is out of range: 0 <= algo.gamma <= 1 is allowed",
        ),
        (
            lambda: PPOConfig(learning_rate=0.0),
            "algo.learning_rate=0.0 is out of range: 0 < algo.learning_rate is allowed",
        ),
        (
            lambda: PPOConfig(learning_rate="0.1"),  # type: ignore[arg-type]
            "algo.learning_rate=0.1 is not a number (it is the text '0.1')",
        ),
        (
            lambda: PPOConfig(gamma=float("nan")),
            "algo.gamma=nan is not a number",
        ),
        (
            lambda: PPOConfig(shuffle="enviroments"),
            "algo.shuffle=enviroments is not one of environments, samples: "
            "did you mean 'environments'?",
        ),
        (
            lambda: PPOConfig(hidden_sizes=(64, 0)),
            "algo.hidden_sizes=0 is out of range: 1 <= algo.hidden_sizes is allowed",
        ),
        (lambda: PPOConfig(normalize_obs=1), "algo.normalize_obs=1 is not true or false"),  # type: ignore[arg-type]
        (lambda: RunConfig(num_envs=5.5), "num_envs=5.5 is not a whole number"),  # type: ignore[arg-type]
        (lambda: RunConfig(num_envs=True), "num_envs=true is not a whole number"),
        (
            lambda: RunConfig(num_envs=0),
            "num_envs=0 is out of range: 1 <= num_envs is allowed",
        ),
        (lambda: RunConfig(task=3), "task=3 is not text"),  # type: ignore[arg-type]
        (
            lambda: RunConfig(algo=A2CConfig(name="ppo")),
            "algo.name=ppo does not fit A2CConfig: PPOConfig is its configuration",
        ),
        (
            lambda: RunConfig(algo=PPOConfig(name="pp0")),
            "unknown algorithm 'pp0': did you mean 'ppo'? (lockstep list algorithms shows all)",
        ),
        (
            lambda: RunConfig(env={"backend": "spring"}),  # type: ignore[arg-type]
            "env={'backend': 'spring'} is not of the class EnvConfig",
        ),
        (lambda: EnvConfig(kwargs={1: 2}), "env.kwargs={1: 2} is not a mapping of names to values"),  # type: ignore[dict-item]
    ],
)
def test_wrong_values_are_refused_in_one_sentence(make: Any, sentence: str) -> None:
    assert refusal(make) == sentence


def test_exact_values_of_another_type_become_the_keys_own() -> None:
    cfg = RunConfig(
        num_envs=64.0,  # type: ignore[arg-type]
        algo=PPOConfig(hidden_sizes=[32], learning_rate=1),  # type: ignore[arg-type]
    )
    assert cfg.num_envs == 64
    assert isinstance(cfg.num_envs, int)
    assert cfg.algo.hidden_sizes == (32,)
    assert isinstance(cfg.algo.learning_rate, float)


def test_every_key_has_a_meaning() -> None:
    for cls in ALGORITHMS.values():
        assert [k.path for k in keys(cls).values() if not k.doc] == []
    assert [k.path for k in keys(RunConfig).values() if not k.doc] == []


# Blocks, minibatches, devices


@pytest.mark.parametrize(
    ("num_envs", "rollout", "minibatches", "shuffle", "blocks"),
    [
        (2048, 32, 4, "environments", 32),  # 64 environments x 32 / 4 = 512 samples
        (4096, 32, 4, "environments", 64),
        (2048, 32, 1, "environments", 128),  # 16 environments x 32 = 512 samples
        (64, 32, 4, "environments", 8),  # fewer samples: still eight blocks
        (16, 32, 4, "environments", 4),  # four environments a block at least
        (4, 32, 4, "environments", 1),
        (100, 32, 4, "environments", 1),  # 25 x 4
        (1000, 32, 4, "environments", 2),  # 250 x 4
        (8, 32, 4, "samples", 8),
        (100, 32, 4, "samples", 4),
        (2048, 5, 4, "environments", 8),
        (65536, 16, 4, "environments", 512),
    ],
)
def test_derived_blocks(
    num_envs: int, rollout: int, minibatches: int, shuffle: str, blocks: int
) -> None:
    assert derive_num_blocks(num_envs, rollout, minibatches, shuffle) == blocks
    assert num_envs % blocks == 0


@pytest.mark.parametrize(
    ("blocks", "available", "used"),
    [(32, 1, 1), (32, 2, 2), (32, 3, 2), (32, 7, 4), (24, 7, 6), (1, 4, 1), (32, 64, 32)],
)
def test_the_devices_used_divide_the_blocks(blocks: int, available: int, used: int) -> None:
    assert devices_used(blocks, available) == used


def test_sizes_that_do_not_divide_name_the_numbers_and_the_nearest_valid_ones() -> None:
    assert refusal(validate, RunConfig(num_envs=10), 3) == (
        "num_envs=10 (global) does not divide into algo.num_minibatches=4 on 3 devices: "
        "the nearest valid num_envs are 8 and 16"
    )
    assert refusal(validate, RunConfig(num_envs=200, num_blocks=32), 2) == (
        "num_envs=200 (global) does not divide into num_blocks=32 x algo.num_minibatches=4 on "
        "2 devices: the nearest valid num_envs are 128 and 256"
    )
    assert refusal(validate, RunConfig(num_envs=3), 1).endswith("the nearest valid num_envs is 4")


@pytest.mark.parametrize("num_envs", [8, 16, 128, 256, 4])
def test_the_sizes_that_are_suggested_are_valid(num_envs: int) -> None:
    validate(RunConfig(num_envs=num_envs), 3)
    assert num_envs % RunConfig(num_envs=num_envs).blocks == 0


def test_samples_of_a_block_divide_into_minibatches() -> None:
    whole = RunConfig(num_envs=32, num_blocks=32, algo=PPOConfig(shuffle="samples"))
    validate(whole, 2)
    odd = replace(whole, algo=PPOConfig(shuffle="samples", rollout_length=6))
    assert "the nearest valid num_envs is 64" in refusal(validate, odd, 2)


def test_more_devices_than_there_are() -> None:
    assert refusal(validate, RunConfig(num_devices=3), 2) == (
        "num_devices=3 is more than the 2 devices there are: at most 2 is allowed"
    )


@pytest.mark.parametrize(
    ("switch", "num_devices", "available", "used"),
    [
        ("auto", None, 4, 4),
        ("auto", 1, 4, 1),
        ("auto", 3, 4, 2),
        ("auto", None, 1, 1),
        ("true", None, 2, 2),
        ("false", None, 4, 1),
        ("false", 1, 4, 1),
    ],
)
def test_devices_by_the_switch(
    switch: str, num_devices: int | None, available: int, used: int
) -> None:
    cfg = RunConfig(enable_multi_devices=switch, num_devices=num_devices)
    assert plan_devices(cfg, available) == used


def test_a_switch_that_cannot_be_obeyed_is_refused() -> None:
    alone = refusal(plan_devices, RunConfig(enable_multi_devices="true"), 1)
    assert "needs two devices or more, but the run would use 1 of 1" in alone
    both = RunConfig(enable_multi_devices="false", num_devices=2)
    assert "num_devices=2 was given" in refusal(plan_devices, both, 4)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_plan_has_the_same_global_numbers_on_any_devices(devices: int) -> None:
    plan = preview(RunConfig(), "cpu", devices)
    assert (plan.num_envs, plan.minibatch_samples, plan.num_blocks) == (2048, 16384, 32)
    assert plan.num_envs_per_device * devices == 2048
    assert f"environments: {2048 // devices} per device x {devices} = 2048" in plan.lines()


def test_the_plan_names_idle_devices() -> None:
    assert "devices:      2 cpu (1 of 3 left idle: num_blocks=32 is not divisible by 3)" in (
        preview(RunConfig(), "cpu", 3).lines()
    )


def test_environments_a_device_become_global() -> None:
    assert envs_for_devices(64, 4) == 256
    assert envs_for_devices(64, 3, num_blocks=12) == 192
    assert refusal(envs_for_devices, 64, 3).endswith("the nearest valid num_devices is 2")
