"""Collectives, keys, sharded maps and placement, each by hand; and the public signatures."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from lockstep import distributed
from lockstep.distributed import (
    DP_AXIS_NAME,
    POP_AXIS_NAME,
    all_gather,
    pmax,
    pmean,
    pmin,
    psum,
    shmap_map,
    shmap_vmap,
    split_key_to_devices,
    tree_device_put,
)

P = PartitionSpec
SIGNATURES = {
    "psum": "(x, axis_name=None)",
    "pmean": "(x, axis_name=None)",
    "pmax": "(x, axis_name=None)",
    "pmin": "(x, axis_name=None)",
    "all_gather": "(x, axis_name=None, **kwargs)",
    "split_key_to_devices": "(key, devices)",
    "gradient_update": "(loss_fn, optimizer, dp_axis_name, has_aux=False)",
    "shmap_vmap": "(fn, mesh, in_specs, out_specs, **kwargs)",
    "shmap_map": "(fn, mesh, in_specs, out_specs, **kwargs)",
    "tree_device_put": "(tree, device_or_sharding)",
    "is_dist_initialized": "()",
    "get_process_id": "()",
    "get_global_ranks": "()",
}


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:2]), (DP_AXIS_NAME,))


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    signature = inspect.signature(getattr(distributed, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    plain = inspect.Signature(bare)
    assert str(plain) == SIGNATURES[name]


def test_signature_of_agent_gradient_update() -> None:
    parameters = inspect.signature(distributed.agent_gradient_update).parameters
    assert list(parameters) == [
        "loss_fn",
        "optimizer",
        "dp_axis_name",
        "has_aux",
        "attach_fn",
        "detach_fn",
    ]
    assert parameters["dp_axis_name"].default is None
    assert parameters["has_aux"].default is False


def test_axis_names() -> None:
    assert (DP_AXIS_NAME, POP_AXIS_NAME) == ("DP", "POP")
    assert set(distributed.__all__) >= {*SIGNATURES, "agent_gradient_update"}


@pytest.mark.parametrize("collective", [psum, pmean, pmax, pmin, all_gather])
def test_identity_without_an_axis(collective) -> None:
    tree = {"a": jnp.ones(3), "b": 2}
    assert collective(tree) is tree
    assert collective(tree, axis_name=None) is tree


def test_collectives_by_hand(mesh: Mesh) -> None:
    def local(x: jax.Array) -> dict[str, jax.Array]:
        return {
            "sum": psum({"x": x}, DP_AXIS_NAME)["x"],
            "mean": pmean(x, axis_name=DP_AXIS_NAME),
            "max": pmax(x, DP_AXIS_NAME),
            "min": pmin(x, DP_AXIS_NAME),
            "stack": all_gather(x, DP_AXIS_NAME),
            "join": all_gather(x, DP_AXIS_NAME, tiled=True),
        }

    run = jax.shard_map(local, mesh=mesh, in_specs=P("DP"), out_specs=P(), check_vma=False)
    result = jax.jit(run)(jnp.asarray([1.0, 5.0, 4.0, 2.0]))
    expected = {
        "sum": [5.0, 7.0],
        "mean": [2.5, 3.5],
        "max": [4.0, 5.0],
        "min": [1.0, 2.0],
        "stack": [[1.0, 5.0], [4.0, 2.0]],
        "join": [1.0, 5.0, 4.0, 2.0],
    }
    assert {name: np.asarray(value).tolist() for name, value in result.items()} == expected


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_every_device_gets_its_own_key(make) -> None:
    devices = jax.devices()
    key = make(5)
    keys = split_key_to_devices(key, devices)
    assert keys.shape[0] == len(devices)
    for index, shard in enumerate(sorted(keys.addressable_shards, key=lambda s: s.index[0].start)):
        assert shard.device == devices[index]
        assert shard.data.shape[0] == 1
    data = jax.random.key_data(keys) if make is jax.random.key else keys
    assert len({tuple(row) for row in np.asarray(data).tolist()}) == len(devices)
    first = jax.random.fold_in(key, 0)
    alone = split_key_to_devices(key, devices[:1])
    assert jnp.all(alone[0] == first)
    assert jnp.all(keys[0] == first)


@pytest.mark.parametrize("shmap", [shmap_vmap, shmap_map])
def test_maps_over_split_members(mesh: Mesh, shmap) -> None:
    def member(x: jax.Array, y: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        assert x.shape == (3,)
        return x.sum() + y["a"], jax.lax.axis_index(DP_AXIS_NAME)

    x = jnp.arange(12.0).reshape(4, 3)
    y = {"a": jnp.asarray([100.0, 200.0, 300.0, 400.0])}
    total, device = shmap(member, mesh, (P("DP"), P("DP")), (P("DP"), P("DP")))(x, y)
    np.testing.assert_array_equal(total, [103.0, 212.0, 321.0, 430.0])
    np.testing.assert_array_equal(device, [0, 0, 1, 1])
    assert total.sharding.spec == P("DP")
    # Keyword arguments reach jax.shard_map.
    whole = shmap(lambda v: psum(v, DP_AXIS_NAME), mesh, P("DP"), P(), check_vma=False)(
        jnp.asarray([1.0, 2.0, 3.0, 4.0])
    )
    np.testing.assert_array_equal(whole, [4.0, 6.0])


@pytest.mark.parametrize("shmap", [shmap_vmap, shmap_map])
def test_a_tuple_of_one_result_spec(mesh: Mesh, shmap) -> None:
    x = jnp.asarray([1.0, 2.0])
    bare = shmap(lambda v: 2 * v, mesh, (P("DP"),), (P("DP"),))(x)
    np.testing.assert_array_equal(bare, [2.0, 4.0])
    (packed,) = shmap(lambda v: (2 * v,), mesh, (P("DP"),), (P("DP"),))(x)
    np.testing.assert_array_equal(packed, [2.0, 4.0])


def test_placement(mesh: Mesh) -> None:
    tree = {"w": jnp.arange(8.0).reshape(4, 2), "n": jnp.asarray(3)}
    device = jax.devices()[1]
    on_device = tree_device_put(tree, device)
    assert on_device["w"].sharding == SingleDeviceSharding(device)
    replicated = NamedSharding(mesh, P())
    assert tree_device_put(tree, replicated)["w"].sharding == replicated
    over_mesh = tree_device_put(tree, mesh)
    assert over_mesh["w"].sharding == NamedSharding(mesh, P("DP"))
    assert [shard.data.shape for shard in over_mesh["w"].addressable_shards] == [(2, 2), (2, 2)]
    assert over_mesh["n"].sharding.is_fully_replicated
    np.testing.assert_array_equal(over_mesh["w"], tree["w"])
    keys = tree_device_put(jax.random.split(jax.random.key(0), 4), mesh)
    assert keys.sharding.spec == P("DP")


def test_placement_that_does_not_divide(mesh: Mesh) -> None:
    with pytest.raises(
        ValueError,
        match=r"leading dimension 5 of pop\.w does not divide over the 2 devices of mesh axis "
        r"'DP' \(nearest: 4 or 6\)",
    ):
        tree_device_put({"pop": {"w": jnp.ones((5, 2))}}, mesh)
    with pytest.raises(ValueError, match=r"1 of the array .* \(nearest: 2\)"):
        tree_device_put(jnp.ones(1), mesh)
