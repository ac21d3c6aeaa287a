"""Shuffles, gradient steps by hand, and the rules of the learning rate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as Spec

from lockstep.config import PPOConfig
from lockstep.distributed.mesh import DP_AXIS_NAME, make_mesh
from lockstep.distributed.reduction import Reduction
from lockstep.protocols import Minibatch, OnPolicyAgent
from lockstep.recipes import make_learning_rate, make_optimizer
from lockstep.workflows.learning import (
    LearnerState,
    Learning,
    LearningRate,
    LearningSettings,
    learn,
    merge_indices,
    shuffled,
)
from tests import toy_envs
from tests.workflows.parts import TINY, build, replace, run

KEY = jax.random.key(0)
SIZES = LearningSettings(
    rollout_length=3, envs_per_block=8, num_envs=16, num_epochs=1, num_minibatches=4, shuffle=""
)


@pytest.mark.parametrize("shuffle", ["environments", "samples"])
def test_an_epoch_has_every_sample_once(shuffle: str):
    index = np.asarray(shuffled(KEY, jnp.int32(0), SIZES._replace(shuffle=shuffle)))
    assert index.shape == (4, 6)
    np.testing.assert_array_equal(np.sort(index.ravel()), np.arange(24))
    assert not np.array_equal(index.ravel(), np.arange(24))


def test_environments_go_to_a_minibatch_as_whole_rows():
    index = np.asarray(shuffled(KEY, jnp.int32(0), SIZES._replace(shuffle="environments")))
    for minibatch in index:
        time, env = np.divmod(minibatch, 8)
        assert np.unique(env).size == 2
        assert sorted(zip(env, time, strict=True)) == [
            (e, t) for e in sorted(set(env)) for t in range(3)
        ]


def test_a_block_is_shuffled_by_its_number_alone():
    sizes = SIZES._replace(shuffle="samples")
    alone = [np.asarray(shuffled(KEY, jnp.int32(i), sizes)) for i in range(4)]
    together = jax.vmap(lambda i: shuffled(KEY, i, sizes))(jnp.arange(4))
    np.testing.assert_array_equal(together, alone)
    assert len({x.tobytes() for x in alone}) == 4
    assert not np.array_equal(shuffled(jax.random.key(1), jnp.int32(0), sizes), alone[0])


def test_every_sample_comes_first_equally_often():
    sizes = SIZES._replace(shuffle="samples", rollout_length=1, envs_per_block=4)
    keys = jax.random.split(KEY, 4000)
    first = jax.jit(jax.vmap(lambda k: shuffled(k, jnp.int32(0), sizes)[0, 0]))(keys)
    # Four standard errors of a share of 1/4: 4 sqrt(3/16 / 4000) = 0.027.
    np.testing.assert_allclose(np.bincount(first, minlength=4) / 4000, 0.25, atol=0.027)


def test_merged_indices_pick_what_the_blocks_would():
    b, n, T = 2, 8, 3
    data = jnp.arange(b * T * n).reshape(b, T, n)
    index = jax.vmap(lambda i: shuffled(KEY, i, SIZES._replace(shuffle="samples")))(jnp.arange(b))
    merged = jnp.moveaxis(data, 0, 1).reshape(-1)  # [T, b * n] of one large block
    picked = merged[merge_indices(index, n)[0]]
    apart = jnp.stack([data[i].reshape(-1)[index[i]] for i in range(b)])
    np.testing.assert_array_equal(picked, jnp.swapaxes(apart, 0, 1).reshape(4, -1))


def product_agent() -> OnPolicyAgent:
    """The loss of a sample is ``w x obs x advantage``; its gradient is the rest."""

    def loss(w: jax.Array, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        return w * batch.obs[0] * batch.advantage, {"approx_kl": batch.obs[0]}

    def unused(*args: Any) -> Any:
        raise AssertionError("learning needs none of this")

    return OnPolicyAgent(unused, unused, unused, unused, unused, loss)


def step_by_hand(
    obs: jax.Array, weight: jax.Array, scale: tuple[float, float], devices: int, exact: bool
) -> tuple[float, dict[str, float]]:
    """``w`` after one step at rate 0.1 from 1 on ``obs [B, s]`` with advantage 3."""
    reduction = Reduction(exact, DP_AXIS_NAME)
    B, s = obs.shape
    sizes = LearningSettings(1, s, B * s, 1, 1, "samples")
    constant = LearningRate(0.1, lambda done, rate, kl: rate)
    parts = Learning(product_agent(), optax.identity(), constant, sizes, reduction)
    ones = jnp.ones_like(obs)
    batches = Minibatch(obs[:, None, :], ones, ones, ones, 3.0 * ones, ones, weight)

    def body(batches: Minibatch, block_ids: jax.Array) -> tuple[jax.Array, dict]:
        start = LearnerState(jnp.float32(1.0), optax.EmptyState(), jnp.float32(0.1), jnp.int32(0))
        state, metrics = learn(parts, start, batches, block_ids, jnp.array(scale), KEY)
        return state.params, metrics

    mapped = jax.shard_map(
        body,
        mesh=make_mesh(jax.devices()[:devices]),
        in_specs=Spec(DP_AXIS_NAME),
        out_specs=Spec(),
        check_vma=False,
    )
    w, metrics = jax.jit(mapped, compiler_options=reduction.compiler_options)(
        batches, jnp.arange(B)
    )
    return float(w), {name: float(x) for name, x in metrics.items()}


OBS = jnp.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("exact", [True, False])
def test_one_gradient_step_is_the_mean_over_all_blocks(devices: int, exact: bool):
    # Advantage (3 - 1) x 0.5 = 1: the gradient is the mean of 110 / 8 = 13.75.
    w, metrics = step_by_hand(OBS, jnp.ones((2, 4)), (1.0, 0.5), devices, exact)
    assert w == pytest.approx(1.0 - 0.1 * 13.75, rel=1e-6)
    assert metrics["loss"] == pytest.approx(13.75)
    assert metrics["grad_norm"] == pytest.approx(13.75)
    assert metrics["approx_kl"] == pytest.approx(13.75)
    assert metrics["learning_rate"] == pytest.approx(0.1)


def test_masked_samples_have_no_part_in_a_step():
    weight = jnp.ones((2, 4)).at[1, 3].set(0.0)
    values = {
        step_by_hand(OBS.at[1, 3].set(garbage), weight, (0.0, 1.0), 1, True)[0]
        for garbage in (0.0, 40.0, 1e6)
    }
    # 3 x (110 - 40) / 8 = 26.25 is the gradient, whatever stands in the masked place.
    assert len(values) == 1
    assert values.pop() == pytest.approx(1.0 - 2.625, rel=1e-6)


def test_the_optimiser_clips_by_the_global_norm():
    optimizer = make_optimizer(replace(TINY, max_grad_norm=1.0, adam_eps=1e-8))
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    gradient = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    _, state = optimizer.update(gradient, optimizer.init(params), params)
    # Norm 5: Adam's first moment sees 0.1 of (0.6, 0, 0.8).
    mu = state[1].mu
    np.testing.assert_allclose(mu["a"], [0.06, 0.0], rtol=1e-6)
    np.testing.assert_allclose(mu["b"], [0.08], rtol=1e-6)


def test_weight_decay_is_decoupled():
    optimizer = make_optimizer(replace(TINY, weight_decay=0.1))
    params = jnp.array([2.0])
    direction, _ = optimizer.update(jnp.zeros(1), optimizer.init(params), params)
    np.testing.assert_allclose(direction, [0.2], rtol=1e-6)


def test_the_rate_is_linear_over_the_whole_run():
    algo = PPOConfig(
        hidden_sizes=(4,), rollout_length=2, num_epochs=1, num_minibatches=1,
        learning_rate=1e-3, lr_schedule="linear",
    )  # fmt: skip
    workflow = build(toy_envs.constant_reward(), algo, num_envs=2, num_blocks=1, updates=100)
    history, state = run(workflow, 61)
    rates = [float(x["learning_rate"]) for x in history]
    assert rates[60] == pytest.approx(3.9e-4, abs=1e-9)
    assert rates[0] == pytest.approx(9.9e-4, abs=1e-9)
    assert float(state.learning_rate) == rates[60]
    history, state = run(workflow, 100)
    assert float(history[-1]["learning_rate"]) == pytest.approx(0.0, abs=1e-9)


def test_rates_by_hand():
    # 10 updates of 2 epochs of 2 minibatches are 40 gradient steps.
    def at(done: int, schedule: str) -> float:
        rate = make_learning_rate(replace(TINY, learning_rate=1.0, lr_schedule=schedule), 10)
        assert rate.initial == 1.0
        return float(rate.next(jnp.int32(done), jnp.float32(1.0), jnp.float32(9.0)))

    assert [at(i, "constant") for i in (1, 40)] == [1.0, 1.0]
    assert [at(i, "linear") for i in (10, 20, 40)] == pytest.approx([0.75, 0.5, 0.0])
    assert [at(i, "cosine") for i in (10, 20, 40)] == pytest.approx([0.8535534, 0.5, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (3e-3, 0.021, 2e-3),  # above twice the desired 0.01
        (3e-3, 0.019, 3e-3),
        (3e-3, 0.006, 3e-3),
        (3e-3, 0.004, 4.5e-3),  # below half
        (3e-3, 0.0, 3e-3),  # nothing was measured
        (1.2e-5, 1.0, 1e-5),  # the range's ends
        (9e-3, 0.001, 1e-2),
    ],
)
def test_the_adaptive_rate_follows_the_divergence(rate: float, kl: float, expected: float):
    algo = replace(TINY, learning_rate=1e-3, lr_schedule="adaptive", desired_kl=0.01)
    rule = make_learning_rate(algo, 10).next
    got = rule(jnp.int32(1), jnp.float32(rate), jnp.float32(kl))
    assert float(got) == pytest.approx(expected, rel=1e-6)
