"""The examples of the guide to distributed training, with the import changed.

``docs/distributed.md`` says where an example is written otherwise for current JAX.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def test_population_is_evaluated_on_all_devices() -> None:
    from lockstep.distributed import shmap_vmap, tree_device_put

    # Create a mesh spanning all available GPUs
    mesh = jax.sharding.Mesh(jax.devices(), ("gpu",))

    def evaluate_population(pop_params):
        # Dummy fitness evaluation
        return jnp.sum(pop_params, axis=-1)

    # Define sharding specs: distribute the first axis across GPUs
    in_specs = (jax.sharding.PartitionSpec("gpu"),)
    out_specs = (jax.sharding.PartitionSpec("gpu"),)

    # Wrap the function
    sharded_eval = shmap_vmap(evaluate_population, mesh, in_specs, out_specs)

    # Prepare data: [num_devices, pop_per_device, param_dim]
    pop = jnp.arange(4 * 10 * 3).reshape(4, 10, 3).astype(jnp.float32)
    pop_sharded = tree_device_put(pop, mesh)
    assert len({shard.device for shard in pop_sharded.addressable_shards}) == jax.device_count()

    # Execute: each GPU processes its shard in parallel
    fitness = sharded_eval(pop_sharded)  # Shape: (4, 10)
    assert fitness.shape == (4, 10)
    np.testing.assert_array_equal(fitness, np.arange(120.0).reshape(4, 10, 3).sum(-1))
    assert len({shard.device for shard in fitness.addressable_shards}) == jax.device_count()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    params: Any
    opt_state: Any
    optimizer: Any = dataclasses.field(metadata={"static": True})

    def replace(self, **changes: Any) -> TrainState:
        return dataclasses.replace(self, **changes)


def loss_fn(params: jax.Array, batch: jax.Array) -> jax.Array:
    return jnp.mean(params * batch)


def train_step(state: TrainState, batch: jax.Array) -> TrainState:
    from lockstep.distributed import pmean

    # Compute local gradients
    grads = jax.grad(loss_fn)(state.params, batch)

    # Average across all devices using the PMAP_AXIS_NAME
    grads = pmean(grads, axis_name="P")

    # Apply optimizer update
    updates, new_opt_state = state.optimizer.update(grads, state.opt_state)
    new_params = optax.apply_updates(state.params, updates)

    return state.replace(params=new_params, opt_state=new_opt_state)


def test_gradients_are_synchronised_across_devices() -> None:
    """The guide transforms with ``jax.pmap``; ``jax.shard_map`` takes its place."""
    optimizer = optax.sgd(1.0)
    params = jnp.asarray(2.0)
    state = TrainState(params, optimizer.init(params), optimizer)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("P",))
    spec = jax.sharding.PartitionSpec
    # check_vma=False: gradients are each device's own, as under pmap.
    step = jax.shard_map(
        train_step, mesh=mesh, in_specs=(spec(), spec("P")), out_specs=spec(), check_vma=False
    )
    state = jax.jit(step)(state, jnp.asarray([1.0, 2.0, 3.0, 6.0]))
    first, second = (float(shard.data) for shard in state.params.addressable_shards)
    assert first == second == 2.0 - 3.0


def test_gradients_are_synchronised_under_pmap() -> None:
    optimizer = optax.sgd(1.0)
    params = jnp.asarray([2.0, 2.0])
    state = TrainState(params, jax.vmap(optimizer.init)(params), optimizer)
    step = jax.pmap(train_step, axis_name="P", devices=jax.devices()[:2])
    state = step(state, jnp.asarray([[1.0, 2.0], [3.0, 6.0]]))
    np.testing.assert_array_equal(state.params, [-1.0, -1.0])


def test_no_op_on_a_single_device() -> None:
    from lockstep.distributed import pmean

    grads = {"w": jnp.ones(3)}
    assert pmean(grads) is grads


def test_state_is_replicated_and_keys_are_distinct() -> None:
    """What the guide says of ``setup``: equal agents, a key and environments a device."""
    from lockstep.distributed import split_key_to_devices, tree_device_put

    devices = jax.devices()
    mesh = jax.sharding.Mesh(devices, ("gpu",))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    agent_state = tree_device_put({"w": jnp.arange(3.0)}, replicated)
    for shard in agent_state["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, [0.0, 1.0, 2.0])
    keys = split_key_to_devices(jax.random.key(0), devices)
    data = np.asarray(jax.random.key_data(keys))
    assert len(np.unique(data, axis=0)) == len(devices)


def test_ranks_partition_the_data() -> None:
    from lockstep.distributed import get_global_ranks

    ranks = get_global_ranks()

    local_rank = ranks[0]  # Each process extracts its identifier
    assert local_rank == 0

    # Use local_rank to partition dataset shards or population slices
    slices = np.split(np.arange(8), jax.device_count())
    mine = np.concatenate([slices[rank] for rank in ranks])
    np.testing.assert_array_equal(mine, np.arange(8))  # one process has all devices
