"""Orthogonal weights, and feature-major layers against the usual batch-major ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.agents.actor_critic import ActorCritic
from lockstep.agents.networks import ACTIVATIONS, Layer, apply_mlp, init_mlp

NUMPY_ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def test_weights_are_orthogonal_at_the_given_scales():
    layers = init_mlp(jax.random.key(0), (3, 8, 8, 2), output_scale=0.01)
    assert [x.weight.shape for x in layers] == [(3, 8), (8, 8), (8, 2)]
    first, second, last = (np.asarray(x.weight, np.float64) for x in layers)
    # The shorter side is orthonormal times the scale: sqrt(2) squared is 2.
    np.testing.assert_allclose(first @ first.T, 2.0 * np.eye(3), atol=1e-5)
    np.testing.assert_allclose(second @ second.T, 2.0 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(2), atol=1e-9)
    assert all(not np.any(x.bias) for x in layers)


def test_hidden_scale_and_keys_differ_by_layer():
    layers = init_mlp(jax.random.key(1), (4, 4, 4), output_scale=1.0, hidden_scale=1.0)
    np.testing.assert_allclose(layers[0].weight @ layers[0].weight.T, np.eye(4), atol=1e-6)
    assert np.abs(layers[0].weight - layers[1].weight).max() > 0.1


def test_a_layer_by_hand():
    layers = [
        Layer(jnp.array([[1.0, -1.0], [2.0, 0.5]]), jnp.array([0.5, 0.0])),
        Layer(jnp.array([[1.0], [10.0]]), jnp.array([-1.0])),
    ]
    # Samples (1, 1) and (-1, 0): hidden (3.5, -0.5) and (-0.5, 1), after relu (3.5, 0), (0, 1).
    out = apply_mlp(layers, jnp.array([[1.0, -1.0], [1.0, 0.0]]), "relu")
    np.testing.assert_allclose(out, [[2.5, 9.0]], rtol=1e-6)


def test_the_activations_are_those_of_the_configuration():
    assert set(ACTIVATIONS) == set(NUMPY_ACTIVATIONS)


@pytest.mark.parametrize("activation", sorted(NUMPY_ACTIVATIONS))
def test_feature_major_equals_batch_major(activation: str):
    layers = init_mlp(jax.random.key(2), (3, 8, 5, 2), output_scale=1.0)
    layers = [x._replace(bias=jnp.linspace(-1.0, 1.0, x.bias.shape[0])) for x in layers]
    x = np.asarray(jax.random.normal(jax.random.key(3), (7, 3)), np.float64)
    out = x
    for i, layer in enumerate(layers):
        out = out @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        if i < len(layers) - 1:
            out = NUMPY_ACTIVATIONS[activation](out)
    got = apply_mlp(layers, jnp.asarray(x.T, jnp.float32), activation)
    np.testing.assert_allclose(got, out.T, rtol=2e-5, atol=2e-6)


def test_policy_head_is_small_and_value_head_is_not():
    net = ActorCritic(
        spaces.Box(-1, 1, (3,)), spaces.Discrete(4), hidden_sizes=(8, 8), activation="tanh"
    )
    params = net.init(jax.random.key(0))
    assert np.linalg.norm(params.actor[-1].weight, axis=0) == pytest.approx([0.01] * 4, rel=1e-5)
    assert np.linalg.norm(params.critic[-1].weight) == pytest.approx(1.0, rel=1e-5)
    assert params.log_std is None
    assert all(x.size for x in jax.tree.leaves(params))
    # Actor and critic are drawn from keys of their own.
    assert np.abs(params.actor[0].weight - params.critic[0].weight).max() > 0.1
    value = net.value(params, jnp.ones((3, 5)))
    assert value.shape == (5,)


def test_initial_log_std_stands_in_the_parameters():
    net = ActorCritic(
        spaces.Box(-1, 1, (3,)),
        spaces.Box(-1, 1, (2,)),
        hidden_sizes=(8,),
        activation="tanh",
        init_log_std=-0.5,
    )
    np.testing.assert_array_equal(net.init(jax.random.key(0)).log_std, [-0.5, -0.5])
