"""Training's speed as a share of the same environment's bare stepping rate, in one process.

Bare stepping and training alternate, so that a change of the machine's load hits both; bare
stepping is the plain batched step, with no reset, no policy and no statistics.

    taskset -c 0 python benchmarks/training_share.py --task ant
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from measure import versions
from report import REPO, conditions, table, today

from lockstep import envs
from lockstep.compose import from_kwargs
from lockstep.config import RunConfig
from lockstep.distributed.mesh import make_mesh
from lockstep.host import start_devices
from lockstep.protocols import Environment
from lockstep.recipes import make_workflow


def bare_stepping(env: Environment, num_envs: int, steps: int) -> Callable[[], None]:
    """A call that steps ``num_envs`` environments ``steps`` times with fixed random actions."""
    keys = jax.random.split(jax.random.key(0), num_envs)
    start, _ = jax.jit(jax.vmap(env.reset))(keys)
    env.action_space.seed(0)
    actions = jax.numpy.stack([env.action_space.sample() for _ in range(num_envs)])

    @jax.jit
    def run(state: Any) -> Any:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, seen = jax.vmap(env.step)(state, actions, jax.random.split(key, num_envs))
            return state, seen.reward

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), steps))

    return lambda: jax.block_until_ready(run(start)) and None


def seconds(call: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(cfg: RunConfig, rounds: int) -> dict[str, list[float]]:
    """Environment steps a second of bare stepping and of training, a value a round."""
    workflow = make_workflow(cfg, make_mesh(start_devices(cfg)))
    bare = bare_stepping(envs.make(cfg.task, cfg.env.backend), cfg.num_envs, 64)
    state = workflow.setup(jax.random.key(0))

    def train() -> None:
        nonlocal state
        _, state = workflow.step(state)
        jax.block_until_ready(state)

    rates: dict[str, list[float]] = {"bare": [], "training": []}
    bare(), train(), train()  # compile, and leave the first resets behind
    for _ in range(rounds):
        rates["bare"].append(64 * cfg.num_envs / seconds(bare))
        rates["training"].append(workflow.steps_per_update / seconds(train))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="ant")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--num-blocks", type=int, default=2)
    parser.add_argument("--rollout-length", type=int, default=64)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default=str(REPO / "benchmarks" / "results"))
    args = parser.parse_args()
    load = os.getloadavg()[0]
    cfg = from_kwargs(
        args.task,
        num_devices=1,
        num_envs=args.num_envs,
        num_blocks=args.num_blocks,
        algo={
            "rollout_length": args.rollout_length,
            "num_epochs": args.num_epochs,
            "num_minibatches": 4,
            "hidden_sizes": [256, 256],
            "normalize_obs": True,
        },
    )
    rates = measure(cfg, args.rounds)
    shares = [t / b for t, b in zip(rates["training"], rates["bare"], strict=True)]
    rows = [
        [name, f"{statistics.median(x):,.0f}", f"{min(x):,.0f}", f"{max(x):,.0f}"]
        for name, x in rates.items()
    ]
    rows.append(["share", *(f"{f(shares):.3f}" for f in (statistics.median, min, max))])
    page = [
        f"# Training as a share of bare stepping: {args.task}",
        "",
        *conditions(load),
        f"- one device, {args.num_envs} environments in {args.num_blocks} blocks, "
        f"rollout {args.rollout_length}, {args.num_epochs} epochs x 4 minibatches, "
        f"policy and value 256x256, float32",
        f"- {versions('jax', 'jaxlib', 'brax')}",
        "",
        *table(["env-steps/s", "median", "lowest", "highest"], rows),
        "",
    ]
    path = Path(args.output) / f"{today()}-share-{args.task}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page))
    print("\n".join(page))


if __name__ == "__main__":
    main()
