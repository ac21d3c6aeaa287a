"""Sums over blocks: their order, and the same bits on one device and two."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec

from lockstep.distributed.mesh import DP_AXIS_NAME, make_mesh
from lockstep.distributed.reduction import Reduction, tree_sum, vectors

EXACT = Reduction(exact=True, axis=DP_AXIS_NAME)
FAST = Reduction(exact=False, axis=DP_AXIS_NAME)


def on_devices(
    devices: int, function: Callable[..., jax.Array], *args: jax.Array, reduction: Reduction = EXACT
) -> np.ndarray:
    """``function`` of arguments whose leading dimension is split over ``devices``."""
    mesh = make_mesh(jax.devices()[:devices])
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=Spec(DP_AXIS_NAME), out_specs=Spec(), check_vma=False
    )
    return np.asarray(jax.jit(mapped, compiler_options=reduction.compiler_options)(*args))


def test_tree_sum_adds_neighbours_first():
    # 1e8 swallows a 1 in float32: neighbours first gives (1e8 + 1) + (-1e8 + 1) = 0,
    # left to right would give ((1e8 + 1) - 1e8) + 1 = 1.
    parts = jnp.array([[1e8], [1.0], [-1e8], [1.0]])
    assert float(tree_sum(parts)[0]) == 0.0
    assert float(tree_sum(jnp.array([[3.0]]))[0]) == 3.0


@pytest.mark.parametrize("count", range(1, 10))
def test_tree_sum_adds_every_part_once(count: int):
    parts = jnp.stack([2.0 ** jnp.arange(count), jnp.ones(count)], axis=1)
    np.testing.assert_array_equal(tree_sum(parts), [2.0**count - 1, count])


def square_mean(fixed: jax.Array, x: jax.Array) -> jax.Array:
    """Arithmetic whose last bits depend on fusion and order."""
    return jnp.stack([jnp.sum(jnp.tanh(x * fixed) ** 2) / 3.0, jnp.sum(jnp.exp(-x) * fixed)])


@pytest.fixture(scope="module")
def blocks() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (8, 100)) * 3.0


def summed(reduction: Reduction, devices: int, blocks: jax.Array) -> np.ndarray:
    return on_devices(
        devices,
        lambda x: reduction.sum_blocks(square_mean, jnp.float32(0.7), x),
        blocks,
        reduction=reduction,
    )


@pytest.mark.parametrize("reduction", [EXACT, FAST], ids=["exact", "fast"])
def test_sum_blocks_is_the_sum(reduction: Reduction, blocks: jax.Array):
    x = np.asarray(blocks, np.float64)
    expected = [(np.tanh(x * 0.7) ** 2).sum() / 3, (np.exp(-x) * 0.7).sum()]
    for devices in (1, 2):
        np.testing.assert_allclose(summed(reduction, devices, blocks), expected, rtol=1e-5)


def test_exact_sums_have_the_same_bits_on_one_device_and_two(blocks: jax.Array):
    one = summed(EXACT, 1, blocks)
    assert one.tobytes() == summed(EXACT, 2, blocks).tobytes()


@pytest.mark.parametrize("count", [2, 6])
def test_exact_sums_need_no_power_of_two(count: int):
    blocks = jax.random.normal(jax.random.key(1), (count, 100)) * 3.0
    one = summed(EXACT, 1, blocks)
    assert one.tobytes() == summed(EXACT, 2, blocks).tobytes()
    x = np.asarray(blocks, np.float64)
    expected = [(np.tanh(x * 0.7) ** 2).sum() / 3, (np.exp(-x) * 0.7).sum()]
    np.testing.assert_allclose(one, expected, rtol=1e-5)


@pytest.mark.devices
@pytest.mark.skipif(len(jax.devices()) < 4, reason="wants four devices")
def test_exact_sums_have_the_same_bits_on_four_devices(blocks: jax.Array):
    assert summed(EXACT, 1, blocks).tobytes() == summed(EXACT, 4, blocks).tobytes()


@pytest.mark.parametrize("devices", [1, 2])
def test_gather_keeps_the_order_of_the_blocks(devices: int):
    parts = jnp.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(on_devices(devices, EXACT.gather_blocks, parts), parts)


def test_groups_are_all_blocks_of_a_device_and_come_back():
    blocks = {"a": jnp.arange(24.0).reshape(2, 3, 4), "b": jnp.arange(6).reshape(2, 3)}
    merging = Reduction(exact=False, axis=DP_AXIS_NAME, merge=True)
    groups = merging.group(blocks)
    assert (groups["a"].shape, groups["b"].shape) == ((1, 6, 4), (1, 6))
    back = merging.ungroup(groups, blocks)
    for name in blocks:
        np.testing.assert_array_equal(back[name], blocks[name])
    assert FAST.group(blocks) is blocks


def test_vectors_and_back():
    tree = {"x": jnp.arange(4.0).reshape(2, 2), "y": jnp.array([10.0, 20.0])}
    flat, unravel = vectors(tree)
    np.testing.assert_array_equal(flat, [[0.0, 1.0, 10.0], [2.0, 3.0, 20.0]])
    back = unravel(flat)
    for name in tree:
        np.testing.assert_array_equal(back[name], tree[name])


def test_exact_alone_asks_for_special_compilation():
    assert FAST.compiler_options == {}
    assert FAST.isolate(square_mean) is square_mean
    assert EXACT.compiler_options == {"xla_disable_hlo_passes": "cse"}
    isolated = EXACT.isolate(square_mean)
    x = jnp.linspace(-1.0, 1.0, 5)
    np.testing.assert_allclose(
        isolated(jnp.float32(0.7), x), square_mean(jnp.float32(0.7), x), rtol=1e-6
    )
