"""Every shipped adapter keeps the contract, under a fixed action and with a short time limit."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from lockstep import envs
from lockstep.envs import catalog
from tests import toy_envs
from tests.envs.contract import check_episode, check_types

LIMIT = 4
# The natural end under action 0, where it comes within LIMIT steps.
TERMINATES_AT = {"simple_bandit": 1}
# On ice an action is not fixed.
OPTIONS = {"frozen_lake": {"is_slippery": False}}
OFFLINE_GYMNAX = [name for name in catalog.names("gymnax") if not catalog.TASKS[name].download]
OFFLINE_PLAYGROUND = [
    name for name in catalog.names("playground") if not catalog.TASKS[name].download
]


@pytest.fixture
def no_key_is_used_twice() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield


@pytest.mark.usefixtures("no_key_is_used_twice")
@pytest.mark.parametrize("name", OFFLINE_GYMNAX)
def test_gymnax(name: str) -> None:
    env = envs.make(name, max_episode_steps=LIMIT, **OPTIONS.get(name, {}))
    assert env.name == name and env.max_episode_steps == LIMIT
    check_types(env)
    check_episode(env, TERMINATES_AT.get(name))
    kind = "discrete" if hasattr(env.action_space, "n") else "continuous"
    assert catalog.TASKS[name].action == kind
    assert envs.make(name).max_episode_steps == catalog.TASKS[name].max_episode_steps


@pytest.mark.parametrize("name", catalog.names("brax"))
def test_brax(name: str) -> None:
    env = envs.make(f"brax:{name}", max_episode_steps=LIMIT)
    assert env.expensive_reset
    assert f"{env.observation_space.shape[0]} numbers" == catalog.TASKS[name].observation
    check_types(env)
    check_episode(env)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["generalized", "positional", "mjx"])
def test_brax_on_other_engines(backend: str) -> None:
    env = envs.make("halfcheetah", backend, max_episode_steps=LIMIT)
    check_types(env)
    check_episode(env)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["generalized", "positional", "mjx"])
@pytest.mark.parametrize("name", [n for n in catalog.names("brax") if n != "swimmer"])
def test_brax_builds_on_every_engine(name: str, backend: str) -> None:
    check_types(envs.make(name, backend))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartpoleBalance", "CheetahRun"])
def test_playground(name: str) -> None:
    env = envs.make(name, max_episode_steps=LIMIT)
    assert env.expensive_reset
    check_types(env)
    check_episode(env)


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFLINE_PLAYGROUND)
def test_playground_builds_without_network(name: str) -> None:
    env = envs.make(name)
    assert env.max_episode_steps == 1000
    assert f"{env.observation_space.shape[0]} numbers" == catalog.TASKS[name].observation
    check_types(env)


@pytest.mark.usefixtures("no_key_is_used_twice")
@pytest.mark.parametrize("name", toy_envs.ALL)
def test_toys(name: str) -> None:
    check_types(toy_envs.ALL[name]())
