"""Observations become one vector and actions one number or one vector."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.envs.spaces import flat_action, flat_observation
from lockstep.errors import UsageError


@pytest.mark.parametrize(
    ("space", "obs", "flat"),
    [
        (spaces.Box(-1, 1, (2, 2)), [[0.1, 0.2], [0.3, 0.4]], [0.1, 0.2, 0.3, 0.4]),
        (spaces.Box(-1, 1, ()), 0.5, [0.5]),
        (spaces.Box(0, 255, (2,), np.uint8), [3, 255], [3.0, 255.0]),
        (spaces.Discrete(3), 2, [0, 0, 1]),
        (spaces.Discrete(3, start=5), 5, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (1,))}),
            {"a": [0.5], "b": 1},
            [0.5, 0, 1],  # gymnasium sorts the names
        ),
        (
            spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.Tuple([spaces.Discrete(2)])]),
            ([0.25], (0,)),
            [0.25, 1, 0],
        ),
    ],
)
def test_observations(space: spaces.Space, obs: object, flat: list[float]) -> None:
    box, flatten = flat_observation("toy", space)
    arrays = jax.tree.map(jnp.asarray, obs, is_leaf=lambda x: isinstance(x, list))
    seen = jax.jit(flatten)(arrays)
    assert seen.dtype == jnp.float32
    np.testing.assert_allclose(seen, flat)
    assert box.shape == (len(flat),) and box.dtype == np.float32
    assert box.contains(np.asarray(seen))
    assert box.shape == spaces.flatten_space(space).shape


def test_the_largest_float_is_no_bound() -> None:
    largest = np.finfo(np.float32).max
    box, _ = flat_observation("toy", spaces.Box(-largest, largest, (1,)))
    assert box.low.tolist() == [-np.inf] and box.high.tolist() == [np.inf]


def test_actions() -> None:
    space, to_environment = flat_action("toy", spaces.Discrete(3, start=-1))
    assert space == spaces.Discrete(3)
    assert to_environment(jnp.int32(0)) == -1

    space, to_environment = flat_action("toy", spaces.Box(-2.0, 1.0, ()))
    assert space == spaces.Box(-2.0, 1.0, (1,))
    assert to_environment(jnp.array([7.0])).shape == ()
    assert to_environment(jnp.array([7.0])) == 1.0

    _, to_environment = flat_action("toy", spaces.Box(np.float32([-1, -2]), np.float32([1, 2])))
    assert to_environment(jnp.array([-9.0, 1.5])).tolist() == [-1.0, 1.5]


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 2]),
        spaces.MultiBinary(2),
        spaces.Box(-1, 1, (2, 2)),
        spaces.Box(0, 9, (2,), np.int32),
        spaces.Box(-np.inf, 1, (2,)),
        spaces.Dict({"a": spaces.Discrete(2)}),
    ],
)
def test_other_actions_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UsageError, match="task 'toy' acts in"):
        flat_action("toy", space)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Text(3)})])
def test_other_observations_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UsageError, match="task 'toy' observes a Text space"):
        flat_observation("toy", space)
