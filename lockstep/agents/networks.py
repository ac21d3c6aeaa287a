"""Multi-layer perceptrons on feature-major activations.

Shapes: ``D`` inputs, ``H`` hidden units, ``O`` outputs, ``n`` samples. Activations are
``[features, n]``: a layer is ``W.T @ x + b``, the long dimension is contiguous, and the
gradient of a block of samples stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    # By tanh: XLA's logistic function has other bits in programs for several devices.
    "silu": lambda x: x * (0.5 + 0.5 * jnp.tanh(0.5 * x)),
}


class Layer(NamedTuple):
    """Weights ``[in, out]`` and bias ``[out]`` of one affine layer."""

    weight: jax.Array
    bias: jax.Array


def init_mlp(
    key: jax.Array, sizes: Sequence[int], output_scale: float, hidden_scale: float = 2**0.5
) -> list[Layer]:
    """Orthogonal weights and zero biases for layers ``sizes[0] -> ... -> sizes[-1]``.

    Hidden layers are scaled by ``hidden_scale`` and the last by ``output_scale``
    (Andrychowicz et al. 2021: 0.01 for a policy, 1 for a value).
    """
    scales = [hidden_scale] * (len(sizes) - 2) + [output_scale]
    keys = jax.random.split(key, len(scales))
    return [
        Layer(jax.nn.initializers.orthogonal(scale)(k, (i, o)), jnp.zeros(o))
        for k, scale, i, o in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]


def apply_mlp(layers: Sequence[Layer], x: jax.Array, activation: str) -> jax.Array:
    """Apply the network to ``x [D, n]`` and return ``[O, n]``."""
    nonlinear = ACTIVATIONS[activation]
    for layer in layers[:-1]:
        x = nonlinear(layer.weight.T @ x + layer.bias[:, None])
    last = layers[-1]
    return last.weight.T @ x + last.bias[:, None]
