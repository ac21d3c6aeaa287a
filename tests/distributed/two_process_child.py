"""One of two processes: ``two_process_child.py PORT RANK SCENARIO FOLDER DEVICES``.

Prints one JSON object. Leaves with ``os._exit``: a process that failed must not wait for
its peer in JAX's shutdown barrier.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.checkpoint import CheckpointError, Checkpoints, params_sha256
from lockstep.distributed import (
    DP_AXIS_NAME,
    all_gather,
    get_global_ranks,
    get_process_id,
    gradient_update,
    is_dist_initialized,
    pmax,
    pmean,
    pmin,
    psum,
    split_key_to_devices,
)

SPLIT, WHOLE = PartitionSpec(DP_AXIS_NAME), PartitionSpec()


def mesh_of(devices: list[jax.Device]) -> Mesh:
    return Mesh(np.asarray(devices), (DP_AXIS_NAME,))


def global_array(mesh: Mesh, value: np.ndarray, spec: PartitionSpec) -> jax.Array:
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def state_on(mesh: Mesh) -> dict[str, Any]:
    """A state with split, replicated and key leaves; its values do not depend on the mesh."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(4))
    data = global_array(mesh, np.asarray(jax.random.key_data(keys)), SPLIT)
    return {
        "params": {"w": global_array(mesh, np.arange(6, dtype=np.float32), WHOLE)},
        "obs": global_array(mesh, np.arange(8, dtype=np.float32).reshape(4, 2), SPLIT),
        "keys": jax.random.wrap_key_data(data),
        "empty": global_array(mesh, np.zeros((4, 0), np.float32), SPLIT),
    }


def collectives(mesh: Mesh) -> dict[str, Any]:
    values = global_array(mesh, np.asarray([1.0, 2.0, 3.0, 6.0], np.float32), SPLIT)

    def local(x: jax.Array) -> dict[str, jax.Array]:
        total = x.sum()
        return {
            "psum": psum(total, DP_AXIS_NAME),
            "pmean": pmean(total, DP_AXIS_NAME),
            "pmax": pmax(x.max(), DP_AXIS_NAME),
            "pmin": pmin(x.min(), DP_AXIS_NAME),
            "all_gather": all_gather(x, DP_AXIS_NAME, tiled=True),
        }

    mapped = jax.shard_map(local, mesh=mesh, in_specs=SPLIT, out_specs=WHOLE, check_vma=False)
    return {name: np.asarray(x).tolist() for name, x in jax.jit(mapped)(values).items()}


def gradients(mesh: Mesh) -> list[float]:
    step = gradient_update(lambda w, x: jnp.mean(w * x), optax.sgd(1.0), DP_AXIS_NAME)
    mapped = jax.shard_map(
        lambda w, x: step(optax.sgd(1.0).init(w), w, x)[:2],
        mesh=mesh,
        in_specs=(WHOLE, SPLIT),
        out_specs=WHOLE,
    )
    values = global_array(mesh, np.asarray([1.0, 2.0, 3.0, 6.0], np.float32), SPLIT)
    loss, weight = jax.jit(mapped)(global_array(mesh, np.asarray(2.0, np.float32), WHOLE), values)
    return [float(loss), float(weight)]


def everything(folder: Path) -> dict[str, Any]:
    mesh = mesh_of(jax.devices())
    keys = split_key_to_devices(jax.random.key(3), jax.devices())
    checkpoints = Checkpoints(folder, keep=2, barrier_timeout=60.0)
    state = state_on(mesh)
    checkpoints.save(1, state, {"update": 1})
    start = time.perf_counter()
    checkpoints.save(2, state, {"update": 2})
    save_seconds = time.perf_counter() - start
    poisoned = np.zeros(4, np.float32)
    poisoned[3] = np.nan  # in the last process's part
    try:
        checkpoints.save(3, {"obs": global_array(mesh, poisoned, SPLIT)}, {})
        refused = ""
    except CheckpointError as error:
        refused = str(error)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    restored, host = checkpoints.restore(2, target)
    return {
        "initialized": is_dist_initialized(),
        "process": get_process_id(),
        "ranks": get_global_ranks().tolist(),
        "collectives": collectives(mesh),
        "gradients": gradients(mesh),
        "local_keys": [
            np.asarray(jax.random.key_data(shard.data)).tolist()
            for shard in keys.addressable_shards
        ],
        "sha256": params_sha256(state),
        "restored_sha256": params_sha256(restored),
        "host": host,
        "updates": checkpoints.updates(),
        "refused": refused,
        "save_seconds": save_seconds,
    }


def late(folder: Path) -> dict[str, Any]:
    """Process 1 does not come to the save."""
    checkpoints = Checkpoints(folder, keep=2, barrier_timeout=2.0)
    state = state_on(mesh_of(jax.devices()))
    if jax.process_index() == 1:
        time.sleep(20.0)
        return {}
    start = time.monotonic()
    try:
        checkpoints.save(1, state, {})
        told = ""
    except CheckpointError as error:
        told = str(error)
    return {"told": told, "seconds": time.monotonic() - start, "latest": checkpoints.latest()}


def main() -> None:
    port, rank, scenario, folder, devices = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    jax.distributed.initialize(
        f"localhost:{port}", num_processes=2, process_id=int(rank), initialization_timeout=60
    )
    result = {"everything": everything, "late": late}[scenario](Path(folder))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
