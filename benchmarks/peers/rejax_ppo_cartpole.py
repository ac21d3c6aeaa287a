"""rejax's PPO on CartPole-v1, sizes as in ``lockstep_ppo.py``; runs in rejax's own environment.

rejax runs ``ceil(eval_freq / (num_envs * num_steps))`` updates between two evaluations, so one
evaluation a call with an empty callback leaves nothing but updates in the timed call. Its
minibatch is ``num_envs * num_steps / num_minibatches`` samples, as ours. Its advantages are
normalised per minibatch, its two networks are two MLPs of the given sizes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from rejax import PPO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import emit, steady_state, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=2048)
    parser.add_argument("--rollout-length", type=int, default=32)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--updates", type=int, default=5, help="updates in one timed call")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    steps = args.num_envs * args.rollout_length * args.updates
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=args.num_envs,
        num_steps=args.rollout_length,
        num_epochs=args.num_epochs,
        num_minibatches=args.num_minibatches,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        max_grad_norm=0.5,
        learning_rate=3e-4,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: jnp.zeros(()))
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    assert algorithm.minibatch_size == steps // args.updates // args.num_minibatches
    run = jax.jit(lambda state: algorithm.train(train_state=state)[0])
    result, state = steady_state(run, state, steps, args.repeats)
    assert int(state.global_step) == steps * result["calls"], "rejax ran another number of steps"
    emit(result, system="rejax", versions=versions("rejax", "gymnax", "jax", "jaxlib"))


if __name__ == "__main__":
    main()
