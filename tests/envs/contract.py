"""What every environment must keep, as one function that the tests call for each adapter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from lockstep.protocols import FunctionalEnvironment, Transition

# Compiling is most of the cost here, so the compiler is asked not to try hard.
QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


def middle_action(env: FunctionalEnvironment) -> jax.Array:
    """A fixed action: 0 of a discrete space, the middle of a box."""
    if isinstance(env.action_space, spaces.Discrete):
        return jnp.int32(0)
    assert isinstance(env.action_space, spaces.Box)
    return jnp.asarray((env.action_space.low + env.action_space.high) / 2)


def rollout(env: FunctionalEnvironment, steps: int, action: jax.Array | None = None) -> Any:
    """A compiled ``key -> (first observation [D], transitions [steps, ...])``."""
    chosen = middle_action(env) if action is None else jnp.asarray(action)

    def run(key: jax.Array) -> tuple[jax.Array, Transition]:
        key_reset, key_steps = jax.random.split(key)
        state, obs = env.reset(key_reset)

        def one(state: Any, key: jax.Array) -> tuple[Any, Transition]:
            return env.step(state, chosen, key)

        return obs, jax.lax.scan(one, state, jax.random.split(key_steps, steps))[1]

    return jax.jit(run, compiler_options=QUICK)


def check_types(env: FunctionalEnvironment) -> None:
    """Shapes and dtypes as the spaces tell; the state has one type through any number of steps."""
    assert isinstance(env.observation_space, spaces.Box)
    assert len(env.observation_space.shape) == 1
    assert env.observation_space.dtype == np.float32
    if isinstance(env.action_space, spaces.Box):
        assert len(env.action_space.shape) == 1
        assert np.isfinite(env.action_space.low).all() and np.isfinite(env.action_space.high).all()
    else:
        assert isinstance(env.action_space, spaces.Discrete) and env.action_space.start == 0
    key = jax.random.key(0)
    state, obs = jax.eval_shape(env.reset, key)
    later, t = jax.eval_shape(env.step, state, middle_action(env), key)
    assert jax.tree.structure(state) == jax.tree.structure(later)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(later), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    for seen in (obs, t.obs, t.final_obs):
        assert (seen.shape, seen.dtype) == (env.observation_space.shape, jnp.float32)
    assert (t.reward.shape, t.reward.dtype) == ((), jnp.float32)
    assert (t.terminated.shape, t.terminated.dtype) == ((), jnp.bool_)
    assert (t.truncated.shape, t.truncated.dtype) == ((), jnp.bool_)
    assert all(value.shape == () for value in t.info.values())


def check_episode(env: FunctionalEnvironment, terminates_at: int | None = None) -> None:
    """One episode under a fixed action, from two keys, the first of them twice.

    ``env`` has a time limit. Without ``terminates_at`` nothing may terminate and exactly the
    last allowed step is truncated; with it, that step (from 1) terminates and is not truncated.
    """
    assert env.max_episode_steps is not None
    run = rollout(env, env.max_episode_steps)
    obs, t = run(jax.random.key(1))
    again = run(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, (obs, t), again)
    for first, steps in ((obs, t), run(jax.random.key(2))):
        length = terminates_at or env.max_episode_steps
        assert not (steps.terminated & steps.truncated).any()
        assert np.flatnonzero(steps.terminated)[:1].tolist() == (
            [] if terminates_at is None else [terminates_at - 1]
        )
        assert not steps.truncated[: length - 1].any()
        assert bool(steps.truncated[length - 1]) == (terminates_at is None)
        np.testing.assert_array_equal(steps.obs, steps.final_obs)
        assert np.isfinite(steps.obs[:length]).all() and np.isfinite(steps.reward[:length]).all()
        for seen in (first, *steps.obs[:length]):
            assert env.observation_space.contains(np.asarray(seen))
