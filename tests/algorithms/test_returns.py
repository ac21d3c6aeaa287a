"""Advantages against a reference that cuts the trajectories first."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.algorithms.returns import gae

GAMMA = 0.9


def one_trajectory(
    rewards: np.ndarray, values: np.ndarray, beyond: float, gamma: float, lam: float
) -> np.ndarray:
    """Advantages of one uncut piece: the definition as a double sum, in float64.

    ``A_t = sum_l (gamma lam)^l delta_{t+l}``, where ``beyond`` is the value after its last step.
    """
    after = np.append(values[1:], beyond)
    delta = rewards + gamma * after - values
    length = len(delta)
    return np.array(
        [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)]
    )


def split_reference(
    rewards: np.ndarray,
    values: np.ndarray,
    last_value: float,
    ends: dict[int, float],
    gamma: float,
    lam: float,
) -> np.ndarray:
    """One environment; ``ends`` maps the steps at which an episode ended to the value beyond."""
    pieces, start = [], 0
    for end, beyond in sorted(({len(rewards) - 1: last_value} | ends).items()):
        piece = slice(start, end + 1)
        pieces.append(one_trajectory(rewards[piece], values[piece], beyond, gamma, lam))
        start = end + 1
    return np.concatenate(pieces)


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_truncation_and_termination_cut_the_sum(lam: float):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 6, 2))
    last, final = rng.normal(size=2), 2.5
    # Environment 0 is truncated at t=2, where the final observation is worth 2.5; environment 1
    # terminates at t=3, beyond which nothing is worth anything.
    next_values = np.concatenate([values[1:], last[None]])
    next_values[2, 0], next_values[3, 1] = final, 0.0
    done = np.zeros((6, 2))
    done[2, 0] = done[3, 1] = 1.0
    arrays = (jnp.asarray(x, jnp.float32) for x in (rewards, values, next_values, done))
    got = gae(*arrays, GAMMA, lam)
    expected = np.stack(
        [
            split_reference(rewards[:, 0], values[:, 0], last[0], {2: final}, GAMMA, lam),
            split_reference(rewards[:, 1], values[:, 1], last[1], {3: 0.0}, GAMMA, lam),
        ],
        axis=1,
    )
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_by_hand():
    # gamma 1/2, lambda 1/2; deltas 1 + 2/2 - 1 = 1, 0 + 4/2 - 2 = 0, 3 + 0 - 4 = -1 (the end).
    # A_2 = -1, A_1 = 0 - 1/4 = -0.25, A_0 = 1 - 1/16 = 0.9375.
    column = lambda *x: jnp.array(x)[:, None]  # noqa: E731
    got = gae(
        column(1.0, 0.0, 3.0),
        column(1.0, 2.0, 4.0),
        column(2.0, 4.0, 0.0),
        column(0.0, 0.0, 1.0),
        0.5,
        0.5,
    )
    np.testing.assert_allclose(got[:, 0], [0.9375, -0.25, -1.0], rtol=1e-6)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    rewards = jnp.array([[1.0], [1.0], [1.0]])
    values = jnp.array([[5.0], [6.0], [7.0]])
    next_values = jnp.array([[6.0], [7.0], [0.0]])
    done = jnp.array([[0.0], [0.0], [1.0]])
    got = gae(rewards, values, next_values, done, GAMMA, 1.0)
    np.testing.assert_allclose(got + values, [[2.71], [1.9], [1.0]], rtol=1e-6)
