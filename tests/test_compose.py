"""Layers of the configuration: which one wins, and that nothing given is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from lockstep.compose import (
    compose,
    compose_with_sources,
    from_kwargs,
)
from lockstep.config import A2CConfig, PPOConfig, RunConfig
from lockstep.errors import UsageError
from lockstep.layers import run_keys

LEAVES = sorted(path for path in run_keys("ppo") if path != "env.kwargs")
GUIDE_OVERLAY = "defaults:\n  - _self_\n  - config\n\nenable_multi_devices: true\n"


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The sentence a call is refused with; it is one line."""
    with pytest.raises(UsageError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def overlay(tmp_path: Path, text: str) -> str:
    """Write an overlay file and return its path."""
    path = tmp_path / "overlay.yaml"
    path.write_text(text)
    return str(path)


# Precedence


def test_tuned_defaults_stand_over_the_algorithms_own() -> None:
    tuned = compose("cartpole")
    assert (tuned.num_envs, tuned.total_steps, tuned.num_blocks) == (2048, 2_000_000, 32)
    assert compose("memory_chain").total_steps == RunConfig().total_steps
    assert compose("CartPole-v1") == tuned


def test_each_layer_stands_over_the_one_below(tmp_path: Path) -> None:
    file = overlay(tmp_path, "seed: 1\nnum_envs: 256\nalgo:\n  gamma: 0.9\n  rollout_length: 8\n")
    found = compose_with_sources(
        "cartpole",
        overrides=["algo.rollout_length=16"],
        config_file=file,
        options={"num_envs": "512"},
    )
    cfg = found.config
    assert (cfg.seed, cfg.num_envs, cfg.total_steps) == (1, 512, 2_000_000)
    assert (cfg.algo.gamma, cfg.algo.rollout_length, cfg.algo.gae_lambda) == (0.9, 16, 0.95)
    assert found.sources["num_envs"] == "--num-envs"
    assert found.sources["seed"] == found.sources["algo.gamma"] == "overlay.yaml"
    assert found.sources["algo.rollout_length"] == "algo.rollout_length=16"
    assert found.sources["total_steps"] == "tuned/ppo/cartpole.yaml"
    assert "algo.gae_lambda" not in found.sources


def test_the_guides_overlay_is_understood(tmp_path: Path) -> None:
    cfg = compose("cartpole", config_file=overlay(tmp_path, GUIDE_OVERLAY))
    assert cfg.enable_multi_devices == "true"
    assert cfg.num_envs == 2048


@pytest.mark.parametrize(
    "text", ["algo: a2c\n", "algo:\n  name: a2c\n", "defaults: [_self_, {algo: a2c}]\n"]
)
def test_an_overlay_may_choose_the_algorithm(tmp_path: Path, text: str) -> None:
    assert isinstance(compose("pendulum", config_file=overlay(tmp_path, text)).algo, A2CConfig)
    assert isinstance(
        compose("pendulum", "ppo", config_file=overlay(tmp_path, text)).algo, PPOConfig
    )


def test_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = overlay(tmp_path, "num_envs: 64\neval_episodes: ${num_envs}\n")
    assert compose("cartpole", config_file=file).eval_episodes == 64
    missing = overlay(tmp_path, "eval_episodes: ${nothing}\n")
    assert "cannot be resolved" in refusal(compose, "cartpole", config_file=missing)


def test_the_length_given_last_counts(tmp_path: Path) -> None:
    short = overlay(tmp_path, "max_iterations: 5\n")
    assert compose("cartpole", config_file=short).updates == 5
    longer = compose("cartpole", config_file=short, options={"total_steps": "65536"})
    assert (longer.max_iterations, longer.updates) == (None, 1)
    both = {"total_steps": "65536", "max_iterations": "5"}
    assert "give one" in refusal(compose, "cartpole", options=both)


def test_environments_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CPU_DEVICES", "4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert compose("cartpole", options={"num_envs_per_device": "64"}).num_envs == 256
    assert from_kwargs("cartpole", num_envs_per_device=64, num_devices=2).num_envs == 128
    both = refusal(compose, "cartpole", options={"num_envs_per_device": "64", "num_envs": "64"})
    assert both == "num_envs and num_envs_per_device are two ways to say one: give one"


def test_a_hydra_application_around_it_is_left_as_it_was(tmp_path: Path) -> None:
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert compose("cartpole").task == "cartpole"
        assert GlobalHydra.instance().hydra is outer
    assert not GlobalHydra.instance().is_initialized()


# Refusals


@pytest.mark.parametrize("path", LEAVES)
def test_a_key_with_a_letter_dropped_is_refused_with_the_key(path: str, tmp_path: Path) -> None:
    section, dot, name = path.rpartition(".")
    known = run_keys("ppo")
    for index in range(len(name)):
        typo = section + dot + name[:index] + name[index + 1 :]
        if typo in known or typo.endswith("."):
            continue
        wanted = f"unknown key {typo!r}"
        by_word = refusal(compose, "cartpole", overrides=[f"{typo}=1"])
        assert by_word.startswith(f"{wanted}: did you mean {path!r}?")
        assert refusal(from_kwargs, "cartpole", **{typo: 1}) == by_word
    text = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(section.split(".")))
    indent = "  " if section else ""
    file = overlay(tmp_path, f"{text if section else ''}{indent}{name}x: 1\n")
    assert refusal(compose, "cartpole", config_file=file).startswith(
        f"unknown key '{path}x' in overlay.yaml: did you mean {path!r}?"
    )


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("lr_rate=1e-2", "unknown key 'lr_rate': did you mean 'algo.learning_rate'?"),
        ("algo.gama=0.9", "unknown key 'algo.gama': did you mean 'algo.gamma'?"),
        ("gamma=0.9", "unknown key 'gamma': did you mean 'algo.gamma'?"),
        ("algoo.gamma=0.9", "unknown key 'algoo.gamma': did you mean 'algo.gamma'?"),
        ("algo={gama: 0.9}", "unknown key 'algo.gama': did you mean 'algo.gamma'?"),
        ("env.kwarg.x=1", "unknown key 'env.kwarg.x': did you mean 'env.kwargs'?"),
        ("algo.gamma=abc", "algo.gamma=abc is not a number"),
        ("algo.gamma=1.5", "algo.gamma=1.5 is out of range"),
        ("algo.gamma=null", "algo.gamma=null is not a number"),
        ("seed='5'", "seed=5 is not a whole number (it is the text '5')"),
        ("num_envs=5.5", "num_envs=5.5 is not a whole number"),
        ("tensorboard=1", "tensorboard=1 is not true or false"),
        ("algo.hidden_sizes=64", "algo.hidden_sizes=64 is not a list such as"),
        ("algo.hidden_sizes=64,64", "'algo.hidden_sizes=64,64' gives several values"),
        ("algo.hidden_sizes=[a]", "algo.hidden_sizes[0]=a is not a whole number"),
        ("reduction=exac", "reduction=exac is not one of auto, fast, exact"),
        ("+seed=3", "'+seed=3' adds or deletes a key: write seed=3"),
        ("seed", "'seed' is not key=value"),
        ("algo=3", "algo is a section"),
        ("algo@x=ppo", "'algo@x=ppo' names a Hydra package: write algo=ppo"),
        ("algo/gamma=0.9", "unknown key 'algo/gamma': did you mean 'algo.gamma'?"),
        ("compile_cache=~/x", "'compile_cache=~/x' cannot be read (token"),
        ("total_steps=1e30", "total_steps=1000000000000000019884624838656 is out of range"),
        ("env=cartpole", "env is a section"),
        ("algo=pp", "unknown algorithm 'pp': did you mean 'ppo'?"),
        ("task=pendulum", "two values are given for task (TASK and task=pendulum)"),
        ("env.backend=spring", "env.backend=spring: task 'cartpole' has no back-ends"),
        ("algo.tanh_squash=true", "algo.tanh_squash=true needs continuous actions"),
        ("num_envs=10", "num_envs=10 (global) does not divide into algo.num_minibatches=4"),
    ],
)
def test_wrong_words_are_refused(word: str, sentence: str) -> None:
    assert refusal(compose, "cartpole", overrides=[word]).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("num_envs: '64'\n", "num_envs=64 is not a whole number (it is the text '64')"),
        ("algo:\n  gamma: abc\n", "algo.gamma=abc is not a number"),
        ("env: 5\n", "env is a section in overlay.yaml"),
        ("- 1\n", "is not a mapping of keys"),
        ("a: [1\n", "cannot be read"),
        ("defaults: [_self_, confg]\n", "unknown entry 'confg' of the defaults list"),
        ("wandbb: true\n", "unknown key 'wandbb' in overlay.yaml: did you mean 'wandb'?"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = overlay(tmp_path, text)
    assert sentence in refusal(compose, "cartpole", config_file=file)


def test_a_missing_file_is_refused() -> None:
    sentence = refusal(compose, "cartpole", config_file="nowhere.yaml")
    assert sentence == "there is no configuration file 'nowhere.yaml'"


def test_a_key_of_another_algorithm_is_told() -> None:
    assert refusal(compose, "cartpole", "a2c", ["algo.clip_epsilon=0.1"]) == (
        "key 'algo.clip_epsilon' is one of ppo, not of the algorithm a2c"
    )


def test_two_values_for_one_key_are_refused() -> None:
    options = {"num_envs": "5"}
    assert refusal(compose, "cartpole", overrides=["num_envs=6"], options=options) == (
        "two values are given for num_envs (--num-envs and num_envs=6): give one"
    )
    assert "(--algo and algo=a2c)" in refusal(compose, "cartpole", "ppo", ["algo=a2c"])
    assert compose("cartpole", overrides=["num_envs=64"], options={"num_envs": "64"}).num_envs == 64


def test_unknown_environment_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CPU_DEVICE", "2")
    assert refusal(compose, "cartpole") == (
        "unknown environment variable 'LOCKSTEP_CPU_DEVICE': did you mean 'LOCKSTEP_CPU_DEVICES'?"
    )


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5"])
def test_wrong_device_counts_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CPU_DEVICES", value)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert refusal(compose, "cartpole") == (
        f"LOCKSTEP_CPU_DEVICES={value} is not a whole number of 1 to 1024"
    )


# Python keywords


def test_python_keywords() -> None:
    nested = from_kwargs("cartpole", num_envs=512, algo={"learning_rate": 1e-3})
    rate: dict[str, Any] = {"algo.learning_rate": 1e-3}
    dotted = from_kwargs("cartpole", num_envs=512, **rate)
    assert (
        nested
        == dotted
        == compose("cartpole", overrides=["num_envs=512", "algo.learning_rate=1e-3"])
    )
    assert isinstance(from_kwargs("cartpole", algo="a2c").algo, A2CConfig)
    given = A2CConfig(gamma=0.9)
    assert from_kwargs("cartpole", algo=given).algo == given
    assert from_kwargs("cartpole", env={"kwargs": {"x": {"y": 1}}}).env.kwargs == {"x": {"y": 1}}


def test_python_keywords_are_not_converted() -> None:
    sentence = refusal(from_kwargs, "cartpole", num_envs="512")
    assert sentence == "num_envs=512 is not a whole number (it is the text '512')"
    assert "has the type function" in refusal(
        from_kwargs, "cartpole", **{"env.kwargs.reward": lambda: 0}
    )
