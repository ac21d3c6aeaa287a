"""Evaluate the last commit of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from lockstep.checkpoint import Checkpoints, params_sha256
from lockstep.compose import from_yaml
from lockstep.config import RunConfig
from lockstep.distributed.mesh import make_mesh
from lockstep.errors import UsageError
from lockstep.host import start_compile_cache, start_devices
from lockstep.protocols import Workflow
from lockstep.recipes import make_workflow
from lockstep.results import EvaluateResult, evaluation_scalars


def evaluate_run(run: str, episodes: int | None, stochastic: bool) -> EvaluateResult:
    """Evaluate the last commit of a run over full episodes; changes nothing.

    Raises:
        UsageError: the run has no whole commit.
    """
    folder = Path(run)
    cfg = from_yaml(folder / "config.yaml")
    # A policy trained on more devices than there are here is evaluated on those there are.
    cfg = replace(cfg, num_devices=None, enable_multi_devices="auto")
    if episodes is not None:
        cfg = replace(cfg, eval_episodes=episodes)
    devices = start_devices(cfg)
    start_compile_cache(cfg.compile_cache)
    workflow = make_workflow(cfg, make_mesh(devices), stochastic_evaluation=stochastic)
    commits = Checkpoints(folder / "checkpoints", cfg.keep_checkpoints)
    state, host = restore_newest(commits, workflow, cfg, lambda line: print(line, file=sys.stderr))
    metrics, state = workflow.evaluate(state)
    return EvaluateResult(
        run_dir=str(folder),
        task=cfg.task,
        algorithm=cfg.algo.name,
        update=host["update"],
        deterministic=not stochastic,
        params_sha256=params_sha256(state.params),
        **evaluation_scalars(metrics, cfg),
    )


def run_key(cfg: RunConfig) -> jax.Array:
    """The key that all of a run's randomness comes from: threefry, whatever JAX's default."""
    return jax.random.key(cfg.seed, impl="threefry2x32")


def restore_newest(
    commits: Checkpoints, workflow: Workflow, cfg: RunConfig, tell: Callable[[str], None]
) -> tuple[Any, dict[str, Any]]:
    """The state and the counters of the newest sound commit, on the workflow's mesh.

    ``tell`` is called with a line for each commit that is passed over.

    Raises:
        UsageError: there is none.
        CheckpointError: it cannot be read or does not fit the workflow.
    """
    for name in commits.partial():
        tell(f"ignored the half-written checkpoint {name}")
    for update in reversed(commits.updates()):
        file = commits.damaged(update)
        if file is None:
            break
        tell(f"ignored the checkpoint {update}: {file} is not what was written")
    else:
        raise UsageError(f"the run {str(commits.directory.parent)!r} has no whole checkpoint")
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        workflow.setup(run_key(cfg)),
    )
    return commits.restore(update, target)
