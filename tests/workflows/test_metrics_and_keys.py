"""What an update reports, counted independently, and keys that are used once."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.protocols import FunctionalEnvironment, Transition
from tests import toy_envs
from tests.workflows.parts import TINY, as_bytes, build, line, replace, run


class Counter:
    """Counts environment steps on the host."""

    def __init__(self) -> None:
        self.steps = 0

    def env(self) -> FunctionalEnvironment:
        inner = toy_envs.step_index(5)

        def add(t: np.ndarray) -> None:
            self.steps += np.size(t)

        def step(state, action, key):  # type: ignore[no-untyped-def]
            jax.debug.callback(add, state)
            return inner.step(state, action, key)

        return inner._replace(name="counted", step=step)


@pytest.mark.parametrize("devices", [1, 2])
def test_reported_steps_are_those_the_environments_made(devices: int):
    counter = Counter()
    workflow = build(counter.env(), devices=devices)
    history, _ = run(workflow, 3)
    jax.effects_barrier()
    assert counter.steps == 3 * 8 * 8
    assert line(workflow, history[-1], 3)["steps"] == counter.steps
    assert line(workflow, history[-1], 3)["update"] == 3


@pytest.fixture(scope="module")
def never_ending():  # type: ignore[no-untyped-def]
    return build(toy_envs.step_index(80))


def test_no_finished_episode_gives_no_return(never_ending):  # type: ignore[no-untyped-def]
    history, _ = run(never_ending, 3)
    for update, metrics in enumerate(history, 1):
        told = line(never_ending, metrics, update)
        assert told["episodes"] == 0
        assert told["return_mean"] is None and told["return_std"] is None
        assert told["episode_length_mean"] is None
        numbers = [x for x in told.values() if isinstance(x, float)]
        assert numbers and all(math.isfinite(x) for x in numbers)
        assert told["reward_mean"] == 1.0 and told["nan_envs"] == 0


def test_one_episode_of_0_and_99_of_100_have_the_mean_99(never_ending):  # type: ignore[no-untyped-def]
    captured = never_ending.program.lower(never_ending.setup(jax.random.key(0))).out_info[0]
    metrics = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), captured)
    # What two blocks add up to: one of them finishes 1 episode, the other 99.
    parts = [(1, 0.0, 0.0, 10.0), (99, 9900.0, 990_000.0, 99 * 20.0)]
    names = ("episodes", "return_sum", "return_square_sum", "length_sum")
    metrics |= dict(zip(names, np.sum(parts, axis=0), strict=True))
    told = line(never_ending, metrics)
    assert told["episodes"] == 100
    assert told["return_mean"] == pytest.approx(99.0)
    assert told["return_std"] == pytest.approx(math.sqrt(9900 - 99**2))
    assert told["episode_length_mean"] == pytest.approx(19.9)


def seeded_lengths() -> FunctionalEnvironment:
    """Every environment has a length of its own, 1 to 8, and always returns ten times that."""

    def reset(key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        length = jax.random.randint(key, (), 1, 9)
        return (length, jnp.int32(0)), length.astype(jnp.float32)[None]

    def step(s, action, key):  # type: ignore[no-untyped-def]
        length, t = s
        obs = length.astype(jnp.float32)[None]
        over = jnp.array(False)
        return (length, t + 1), Transition(obs, jnp.float32(10), t + 1 >= length, over, obs, {})

    return toy_envs.step_index()._replace(
        name="seeded_lengths", reset=reset, step=step, max_episode_steps=None
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_returns_are_means_over_episodes_of_all_blocks(devices: int):
    algo = replace(TINY, rollout_length=4, num_epochs=1, num_minibatches=1)
    workflow = build(seeded_lengths(), algo, num_envs=4, num_blocks=2, devices=devices)
    state = workflow.setup(jax.random.key(0))
    totals = np.zeros(3)
    for _ in range(4):
        metrics, state = workflow.step(state)
        told = line(workflow, jax.device_get(metrics))
        if told["episodes"]:
            # A step is worth 10: returns are ten times the lengths.
            assert told["return_mean"] == pytest.approx(10 * told["episode_length_mean"])
            count = told["episodes"]
            totals += count, count * told["return_mean"], count * told["episode_length_mean"]
    running = np.asarray(state.blocks.envs.episode_length).sum()
    # Every one of the 4 x 4 x 4 steps belongs to a finished episode or to a running one.
    assert totals[0] > 4
    assert totals[2] + running == pytest.approx(64)
    assert totals[1] + 10 * running == pytest.approx(640)


def test_nan_is_masked_counted_and_told():
    workflow = build(toy_envs.nan_at_step(3, limit=5))
    history, state = run(workflow, 3)
    # Of 24 steps every third is bad, in each of 8 environments: 2, 3 and 3 in the three updates.
    assert [line(workflow, x)["nan_envs"] for x in history] == [16, 24, 24]
    assert [int(x["bad"]["step"]) for x in history] == [2, 0, 1]
    assert [int(x["bad"]["env_id"]) for x in history] == [0, 0, 0]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.opt_state)))
    for metrics in history:
        told = line(workflow, metrics)
        assert told["reward_mean"] == 1.0 and told["loss"] is not None
        assert told["episodes"] == 0 and told["return_mean"] is None


def test_the_ratio_is_one_at_the_first_epoch_of_every_update():
    algo = replace(TINY, num_epochs=1, num_minibatches=1, normalize_obs=True)
    workflow = build(toy_envs.target_action((0.5, -0.2)), algo)
    for metrics in run(workflow, 4)[0]:
        assert abs(float(metrics["approx_kl"])) < 1e-6
        assert float(metrics["clip_fraction"]) == 0.0


def words(key: jax.Array) -> jax.Array:
    """A key as three exact float32 numbers."""
    high, low = jax.random.key_data(key)
    parts = [high & 0xFFFFFF, low & 0xFFFFFF, (high >> 24) * 256 + (low >> 24)]
    return jnp.stack(parts).astype(jnp.float32)


def key_env(depth: int) -> FunctionalEnvironment:
    """Shows the key of every step; at a reset, the key that a rollout would fold from its own."""

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(depth):
            key = jax.random.fold_in(key, 0)
        return jnp.int32(0), words(jax.random.fold_in(key, 1))

    def step(t: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Transition]:
        obs, no = words(key), jnp.array(False)
        return t + 1, Transition(obs, jnp.float32(0), no, no, obs, {})

    return toy_envs.random_goal()._replace(
        name="keys", observation_space=toy_envs._box(3), reset=reset, step=step
    )


def test_keys_of_updates_are_not_those_of_resets():
    # One step an update, so that the state shows every step's key. A split is a fold of
    # 0, 1, ...: the step's key of environment 0 at t=0 is fold(fold(fold(root, 0), 0), 1).
    algo = replace(TINY, rollout_length=1, num_epochs=1, num_minibatches=1)
    workflow = build(key_env(depth=2), algo, num_envs=8)
    state = workflow.setup(jax.random.key(0))
    shown = [np.asarray(state.blocks.envs.obs)]
    for _ in range(4):
        _, state = workflow.step(state)
        shown.append(np.asarray(state.blocks.envs.obs))
    rows = np.concatenate([x.reshape(-1, 3) for x in shown])
    assert len({row.tobytes() for row in rows}) == 5 * 8


def test_no_key_is_used_twice():
    with jax.debug_key_reuse(True):
        workflow = build(toy_envs.nan_at_step(3, limit=5, probability=0.5), eval_episodes=4)
        state = workflow.setup(jax.random.key(0))
        _, state = workflow.step(state)
        metrics, state = workflow.evaluate(state)
    assert as_bytes(state.params) and float(metrics["length_mean"]) >= 3.0
