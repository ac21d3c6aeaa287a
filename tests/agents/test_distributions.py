"""Action distributions against literal numbers and float64 formulas."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.agents.distributions import Gaussian, for_space, tanh_log_det

UNIT_BOX = spaces.Box(-1.0, 1.0, (2,))
PRE_TANH = [0.0, 5.0, 10.0, 20.0, 50.0]


def keys(n: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), n)


def log_normal(x: float, mean: float, std: float) -> float:
    return -((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)


def log_one_minus_tanh_squared(x: float) -> float:
    """In float64, in the softplus form: log(1 - tanh(x)^2) = 2 (log 2 - x - log(1 + e^-2x))."""
    return 2.0 * (math.log(2.0) - x - math.log1p(math.exp(-2.0 * x)))


# Three choices with probabilities 1/4, 1/2, 1/4, and 1/2, 1/4, 1/4.
LOGITS = jnp.log(jnp.array([[1.0, 2.0, 1.0], [2.0, 1.0, 1.0]])).T


def test_categorical_by_hand():
    dist = for_space(spaces.Discrete(3), squash=False)
    assert (dist.outputs, dist.scale) == (3, False)
    log_prob = dist.log_prob(LOGITS, jnp.array([1, 2]))
    np.testing.assert_allclose(log_prob, [-0.6931472, -1.3862944], rtol=1e-6)
    # 1/2 log 2 + 2 x 1/4 log 4 = 1.5 log 2 for both.
    np.testing.assert_allclose(dist.entropy(LOGITS), [1.0397208, 1.0397208], rtol=1e-6)
    np.testing.assert_array_equal(dist.mode(LOGITS), [1, 0])
    np.testing.assert_array_equal(dist.to_env(jnp.array([1, 2])), [1, 2])


def test_categorical_samples_have_the_probabilities():
    dist = for_space(spaces.Discrete(3), squash=False)
    n = 4000
    raw = dist.sample(jnp.tile(LOGITS[:, :1], n), keys(n))
    assert raw.dtype == jnp.int32
    share = np.bincount(np.asarray(raw), minlength=3) / n
    # Four standard errors: 4 sqrt(1/4 / 4000) = 0.032.
    np.testing.assert_allclose(share, [0.25, 0.5, 0.25], atol=0.032)


def test_gaussian_by_formula():
    dist = for_space(UNIT_BOX, squash=False)
    assert (dist.outputs, dist.scale) == (2, True)
    params = Gaussian(jnp.array([[0.5, -1.0], [2.0, 0.0]]), jnp.log(jnp.array([0.5, 2.0])))
    raw = jnp.array([[1.0, -1.0], [0.0, 3.0]])
    expected = [
        log_normal(1.0, 0.5, 0.5) + log_normal(0.0, 2.0, 2.0),
        log_normal(-1.0, -1.0, 0.5) + log_normal(3.0, 0.0, 2.0),
    ]
    np.testing.assert_allclose(dist.log_prob(params, raw), expected, rtol=1e-6)
    # log(0.5) and log(2) cancel: log(2 pi e) = 2.8378771 remains.
    np.testing.assert_allclose(dist.entropy(params), [2.8378771, 2.8378771], rtol=1e-6)
    np.testing.assert_array_equal(dist.mode(params), params.mean)


def test_gaussian_samples_have_the_moments():
    dist = for_space(UNIT_BOX, squash=False)
    n = 4000
    params = Gaussian(jnp.tile(jnp.array([[0.5], [-3.0]]), n), jnp.log(jnp.array([0.5, 2.0])))
    raw = np.asarray(dist.sample(params, keys(n)))
    np.testing.assert_allclose(raw.mean(axis=1), [0.5, -3.0], atol=0.13)  # 4 std errors
    np.testing.assert_allclose(raw.std(axis=1), [0.5, 2.0], rtol=0.05)
    assert abs(np.corrcoef(raw)[0, 1]) < 0.07


def test_environment_receives_clipped_units_of_the_bounds():
    space = spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    to_env = for_space(space, squash=False).to_env
    raw = jnp.array([[-3.0, 0.0, 0.5, 1.0, 9.0], [-3.0, 0.0, 0.5, 1.0, 9.0]])
    expected = [[0.0, -3.0], [2.0, 0.0], [3.0, 0.5], [4.0, 1.0], [4.0, 9.0]]
    np.testing.assert_allclose(to_env(raw), expected, rtol=1e-6)


def test_squashed_environment_receives_the_tanh():
    space = spaces.Box(np.array([0.0], np.float32), np.array([4.0], np.float32))
    to_env = for_space(space, squash=True).to_env
    got = to_env(jnp.array([[0.0, 0.5, -50.0, 50.0]]))
    np.testing.assert_allclose(got, [[2.0], [2 + 2 * math.tanh(0.5)], [0.0], [4.0]], atol=1e-6)


@pytest.mark.parametrize("x", PRE_TANH + [-5.0, -50.0])
def test_tanh_log_det_equals_the_float64_reference(x: float):
    value, slope = jax.value_and_grad(tanh_log_det)(jnp.float32(x))
    expected = log_one_minus_tanh_squared(abs(x))
    assert float(value) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert float(slope) == pytest.approx(-2.0 * math.tanh(x), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("x", PRE_TANH)
def test_squashed_log_prob_is_finite_and_exact_at_saturation(x: float):
    dist = for_space(spaces.Box(-1.0, 1.0, (1,)), squash=True)

    def log_prob(mean: jax.Array, log_std: jax.Array, raw: jax.Array) -> jax.Array:
        return dist.log_prob(Gaussian(mean.reshape(1, 1), log_std[None]), raw.reshape(1, 1))[0]

    inputs = (jnp.float32(1.0), jnp.float32(0.5), jnp.float32(x))
    value, gradients = jax.value_and_grad(log_prob, argnums=(0, 1, 2))(*inputs)
    std = math.exp(0.5)
    expected = log_normal(x, 1.0, std) - log_one_minus_tanh_squared(x)
    assert float(value) == pytest.approx(expected, rel=1e-4)
    z = (x - 1.0) / std
    exact = [z / std, z * z - 1.0, -z / std + 2.0 * math.tanh(x)]
    np.testing.assert_allclose(gradients, exact, rtol=1e-4)


@pytest.mark.parametrize(
    ("space", "squash", "words"),
    [
        (spaces.Discrete(3), True, "algo.tanh_squash=true needs continuous actions"),
        (spaces.Box(-np.inf, np.inf, (2,)), True, "algo.tanh_squash=true needs an action space"),
        (spaces.Box(-1, 1, (2, 2)), False, "no action distribution fits"),
        (spaces.MultiDiscrete([2, 2]), False, "no action distribution fits"),
    ],
)
def test_what_fits_no_distribution_is_refused_in_one_sentence(
    space: spaces.Space, squash: bool, words: str
):
    with pytest.raises(ValueError, match=words) as refusal:
        for_space(space, squash)
    assert str(space) in str(refusal.value)
    assert "\n" not in str(refusal.value)
