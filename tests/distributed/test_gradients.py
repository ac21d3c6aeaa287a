"""Gradient updates by hand on one device and two, in every way the axis can be there."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

from lockstep.distributed import (
    DP_AXIS_NAME,
    agent_gradient_update,
    gradient_update,
    pmean,
)

P = PartitionSpec
BATCH = jnp.asarray([1.0, 2.0, 3.0, 6.0])


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:2]), (DP_AXIS_NAME,))


def loss_fn(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Its gradients are mean(x) for ``w`` and mean(x) / 2 for each half of ``v``."""
    return jnp.mean(params["w"] * x) + jnp.mean(params["v"]).astype(jnp.float32) * jnp.mean(x)


def params_of(w: float = 2.0) -> dict[str, jax.Array]:
    return {"w": jnp.asarray(w), "v": jnp.asarray([1.0, 3.0], jnp.bfloat16)}


def assert_one_sgd_step(value: jax.Array, params: dict[str, jax.Array]) -> None:
    assert float(value) == 12.0  # (2 + 2) * mean(x)
    assert float(params["w"]) == 2.0 - 3.0
    assert params["v"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["v"].astype(np.float32), [1.0 - 1.5, 3.0 - 1.5])


def test_one_device_without_an_axis() -> None:
    optimizer = optax.sgd(1.0)
    params = params_of()
    update = gradient_update(loss_fn, optimizer, None)
    value, params, _ = jax.jit(update)(optimizer.init(params), params, BATCH)
    assert_one_sgd_step(value, params)


@pytest.mark.parametrize("check_vma", [True, False])
def test_two_devices_average(mesh: Mesh, check_vma: bool) -> None:
    optimizer = optax.sgd(1.0)
    params = params_of()
    update = gradient_update(loss_fn, optimizer, DP_AXIS_NAME)
    mapped = jax.shard_map(
        update, mesh=mesh, in_specs=(P(), P(), P("DP")), out_specs=P(), check_vma=check_vma
    )
    value, params, _ = jax.jit(mapped)(optimizer.init(params), params, BATCH)
    assert_one_sgd_step(value, params)
    for leaf in jax.tree.leaves(params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


def test_parameters_that_each_device_holds_itself(mesh: Mesh) -> None:
    """As under ``pmap``: a leading dimension of devices on parameters and optimiser state."""
    optimizer = optax.sgd(1.0)
    params = jax.tree.map(lambda x: jnp.stack([x, x]), params_of())
    opt_state = jax.vmap(optimizer.init)(params)
    update = gradient_update(loss_fn, optimizer, DP_AXIS_NAME)

    def on_one(opt_state: Any, params: Any, x: jax.Array) -> Any:
        squeezed = jax.tree.map(lambda leaf: leaf[0], (opt_state, params))
        return jax.tree.map(lambda leaf: leaf[None], update(*squeezed, x))

    mapped = jax.shard_map(on_one, mesh=mesh, in_specs=P("DP"), out_specs=P("DP"))
    value, params, _ = jax.jit(mapped)(opt_state, params, BATCH)
    for device in (0, 1):
        assert_one_sgd_step(value[device], jax.tree.map(lambda x, d=device: x[d], params))


def test_axis_of_a_vmap() -> None:
    optimizer = optax.sgd(1.0)
    params = params_of()
    update = gradient_update(loss_fn, optimizer, "members")
    mapped = jax.vmap(update, in_axes=(None, None, 0), axis_name="members")
    value, params, _ = mapped(optimizer.init(params), params, BATCH.reshape(2, 2))
    for member in (0, 1):
        assert_one_sgd_step(value[member], jax.tree.map(lambda x, m=member: x[m], params))


def test_plain_gradient_of_replicated_parameters_is_a_sum_with_vma(mesh: Mesh) -> None:
    """Why ``gradient_update`` casts: JAX sums such gradients unasked, ``pmean`` keeps the sum."""

    def gradient(w: jax.Array, x: jax.Array) -> jax.Array:
        return pmean(jax.grad(lambda w: jnp.mean(w * x))(w), DP_AXIS_NAME)

    for check_vma, expected in ((True, 6.0), (False, 3.0)):
        mapped = jax.shard_map(
            gradient, mesh=mesh, in_specs=(P(), P("DP")), out_specs=P(), check_vma=check_vma
        )
        assert float(mapped(jnp.asarray(2.0), BATCH)) == expected


def test_adamw_decays(mesh: Mesh) -> None:
    """AdamW needs the parameters: its first step is lr * (sign(g) + decay * w)."""
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    params = jnp.asarray([2.0, -4.0])
    for axis in (None, DP_AXIS_NAME):
        update = gradient_update(lambda w, x: jnp.mean(x) * w.sum(), optimizer, axis)
        if axis is not None:
            update = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(), P("DP")), out_specs=P())
        _, stepped, _ = jax.jit(update)(optimizer.init(params), params, BATCH)
        np.testing.assert_allclose(stepped, [2.0 - 0.1 * (1 + 1.0), -4.0 - 0.1 * (1 - 2.0)], 1e-5)


def test_aux_is_each_devices_own(mesh: Mesh) -> None:
    def with_aux(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.mean(w * x), x.sum()[None]

    optimizer = optax.sgd(1.0)
    update = gradient_update(with_aux, optimizer, DP_AXIS_NAME, has_aux=True)
    mapped = jax.shard_map(
        update,
        mesh=mesh,
        in_specs=(P(), P(), P("DP")),
        out_specs=((P(), P("DP")), P(), P()),
    )
    w = jnp.asarray(2.0)
    (loss, aux), w, _ = jax.jit(mapped)(optimizer.init(w), w, BATCH)
    assert float(loss) == 6.0
    assert float(w) == -1.0
    assert np.asarray(aux).tolist() == [3.0, 9.0]


def test_one_collective_a_step(mesh: Mesh) -> None:
    """Thirty leaves and the loss travel as one vector."""
    params = {f"{i}": jnp.ones((i + 1,)) for i in range(30)}
    optimizer = optax.adam(1e-3)
    update = gradient_update(
        lambda p, x: sum(leaf.sum() for leaf in jax.tree.leaves(p)) * x.mean(), optimizer, "DP"
    )
    mapped = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(), P("DP")), out_specs=P())
    text = jax.jit(mapped).lower(optimizer.init(params), params, BATCH).as_text()
    assert len(re.findall(r"stablehlo\.all_reduce", text)) == 1


class TupleState(NamedTuple):
    params: Any
    steps: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class PlainState:
    params: Any
    steps: jax.Array


class ReplaceState(PlainState):
    """As flax's and chex's structures, which bring their own ``replace``."""

    def replace(self, **changes: Any) -> ReplaceState:
        return ReplaceState(**{"params": self.params, "steps": self.steps, **changes})


jax.tree_util.register_dataclass(ReplaceState, ["params", "steps"], [])


@pytest.mark.parametrize("kind", [TupleState, PlainState, ReplaceState, dict])
def test_agent_update(mesh: Mesh, kind: type) -> None:
    optimizer = optax.sgd(1.0)
    agent = kind(params=params_of(), steps=jnp.asarray(7))
    get = (lambda s, name: s[name]) if kind is dict else getattr

    def loss(agent_state: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        assert key.shape == ()
        return loss_fn(get(agent_state, "params"), batch)

    opt_state = optimizer.init(get(agent, "params"))
    for axis in (None, DP_AXIS_NAME):
        update = agent_gradient_update(loss, optimizer, axis)
        if axis is not None:
            specs = (P(), P(), P("DP"), P())
            update = jax.shard_map(update, mesh=mesh, in_specs=specs, out_specs=P())
        value, stepped, _ = jax.jit(update)(opt_state, agent, BATCH, jax.random.key(0))
        assert type(stepped) is kind
        assert_one_sgd_step(value, get(stepped, "params"))
        assert int(get(stepped, "steps")) == 7


def test_agent_update_of_a_part() -> None:
    """``attach_fn`` and ``detach_fn`` choose what is trained; the rest stays."""
    agent = {"actor": jnp.asarray(2.0), "critic": jnp.asarray(5.0)}
    optimizer = optax.sgd(1.0)
    update = agent_gradient_update(
        lambda state, batch, key: (jnp.mean(state["actor"] * state["critic"] * batch), "seen"),
        optimizer,
        has_aux=True,
        attach_fn=lambda state, actor: {**state, "actor": actor},
        detach_fn=lambda state: state["actor"],
    )
    opt_state = optimizer.init(agent["actor"])
    (value, aux), agent, _ = update(opt_state, agent, BATCH, jax.random.key(0))
    assert (float(value), aux) == (30.0, "seen")
    assert {name: float(x) for name, x in agent.items()} == {"actor": 2.0 - 15.0, "critic": 5.0}


def test_agent_state_of_an_unknown_kind() -> None:
    class Odd:
        params = jnp.asarray(1.0)

    optimizer = optax.sgd(1.0)
    update = agent_gradient_update(lambda state, batch, key: state.params * batch, optimizer)
    with pytest.raises(ValueError, match="agent state Odd is no dict, NamedTuple or dataclass"):
        update(optimizer.init(Odd.params), Odd(), jnp.asarray(1.0), jax.random.key(0))
