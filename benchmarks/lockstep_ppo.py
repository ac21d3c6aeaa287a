"""lockstep's PPO on one task, steady state; prints one JSON line for ``compare_ppo.py``."""

from __future__ import annotations

import argparse
from typing import Any

import jax
from measure import emit, steady_state, versions

from lockstep.compose import from_kwargs
from lockstep.distributed.mesh import make_mesh
from lockstep.host import start_devices
from lockstep.recipes import make_workflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="cartpole")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--reduction", default="auto", choices=("auto", "fast", "exact"))
    parser.add_argument("--shuffle", default="environments", choices=("environments", "samples"))
    parser.add_argument("--num-envs", type=int, default=2048)
    parser.add_argument("--rollout-length", type=int, default=32)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--updates", type=int, default=5, help="updates in one timed call")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    cfg = from_kwargs(
        args.task,
        num_devices=args.devices,
        num_envs=args.num_envs,
        reduction=args.reduction,
        algo={
            "rollout_length": args.rollout_length,
            "num_epochs": args.num_epochs,
            "num_minibatches": args.num_minibatches,
            "hidden_sizes": args.hidden_sizes,
            "shuffle": args.shuffle,
        },
    )
    devices = start_devices(cfg)
    assert len(devices) == args.devices
    workflow = make_workflow(cfg, make_mesh(devices))

    def run(state: Any) -> Any:
        return workflow.learn(state, args.updates)

    steps = workflow.steps_per_update * args.updates
    result, state = steady_state(run, workflow.setup(jax.random.key(0)), steps, args.repeats)
    done = int(state.update) * workflow.steps_per_update
    assert done == steps * result["calls"], "another number of steps was run"
    emit(result, system="lockstep", versions=versions("gymnax", "jax", "jaxlib"))


if __name__ == "__main__":
    main()
