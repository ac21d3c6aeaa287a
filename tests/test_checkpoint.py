"""Commits: equal bits back, on other devices too, and refusals with their reason."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.checkpoint import (
    CheckpointError,
    CheckpointMismatchError,
    Checkpoints,
    params_sha256,
)
from tests.checkpoint_child import abstract, assert_same, state_of


class Carry(NamedTuple):
    obs: jax.Array
    keys: jax.Array


def mesh_of(count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]), ("DP",))


def training_state(mesh: Mesh) -> dict[str, Any]:
    """What a run has: parameters, optimiser, typed keys, an environment state, odd dtypes."""
    params = {"actor": [{"w": jnp.arange(12.0).reshape(3, 4), "a/b.c": jnp.ones(4, jnp.bfloat16)}]}
    state = {
        "params": params,
        "opt": optax.adamw(1e-3).init(params),
        "key": jax.random.key(7),
        "count": jnp.asarray(3, jnp.int32),
        "none": None,
        "empty": jnp.zeros((8, 0)),
        "flags": jnp.asarray([True, False]),
    }
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    carry = Carry(jnp.arange(32.0).reshape(8, 4), jax.random.split(jax.random.key(1), 8))
    state["carry"] = jax.device_put(carry, NamedSharding(mesh, PartitionSpec("DP")))
    return state


def test_restores_equal_bits_and_structure(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    state = training_state(mesh_of(1))
    host = {"update": 5, "steps": 2**60 + 1, "rate": 0.1, "name": "x", "none": None}
    checkpoints.save(5, state, host)
    restored, counters = checkpoints.restore(5, abstract(state))
    assert_same(restored, state)
    assert isinstance(restored["carry"], Carry)
    assert type(restored["opt"][0]).__name__ == "ScaleByAdamState"
    assert counters == host
    assert checkpoints.read_host(5) == host


@pytest.mark.parametrize("saved_on", [1, 2])
@pytest.mark.parametrize("restored_on", [1, 2, 4])
def test_other_device_counts(tmp_path: Path, saved_on: int, restored_on: int) -> None:
    if restored_on > jax.device_count():
        pytest.skip(f"needs {restored_on} devices, there are {jax.device_count()}")
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = training_state(mesh_of(saved_on))
    checkpoints.save(1, state, {})
    target = abstract(training_state(mesh_of(restored_on)))
    restored, _ = checkpoints.restore(1, target)
    assert_same(restored, state)
    for leaf, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(target), strict=True):
        assert leaf.sharding == wanted.sharding
    # The restored state is usable in one program over its devices.
    doubled = jax.jit(lambda s: jax.random.uniform(s["key"]) + s["carry"].obs.sum())(restored)
    expected = jax.random.uniform(jax.random.key(7)) + 496.0
    np.testing.assert_allclose(doubled, expected, rtol=1e-6)


def test_keeps_the_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.latest() is None
    for update in (10, 20, 30):
        checkpoints.save(update, state_of(update), {})
    assert checkpoints.updates() == [20, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "30"]
    with pytest.raises(ValueError, match="keep must be at least 1 commit, got 0"):
        Checkpoints(tmp_path, keep=0)


def test_saving_an_update_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(10, state_of(10), {"n": 1})
    checkpoints.save(10, state_of(11), {"n": 2})
    restored, host = checkpoints.restore(10, abstract(state_of(0)))
    assert host == {"n": 2}
    assert int(restored["count"]) == 11
    # Interrupted between the two renames of a replacement: the old commit comes back.
    (tmp_path / "10").rename(tmp_path / "10.replaced")
    assert checkpoints.latest() == 10
    assert int(checkpoints.restore(10, abstract(state_of(0)))[0]["count"]) == 11


def test_half_written_commits_are_named_and_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    for update in (1, 2, 3):
        checkpoints.save(update, state_of(update), {})
    (tmp_path / "3" / "commit.json").unlink()
    (tmp_path / "4").mkdir()
    shutil.copytree(tmp_path / "1", tmp_path / "5.partial")  # killed just before its rename
    biggest = max(
        filter(Path.is_file, (tmp_path / "2").rglob("*")), key=lambda path: path.stat().st_size
    )
    assert checkpoints.latest() == 2
    os.truncate(biggest, biggest.stat().st_size // 2)
    assert checkpoints.latest() == 1
    assert checkpoints.partial() == ["2", "3", "4", "5.partial"]
    with pytest.raises(CheckpointError, match=r"no whole checkpoint 4 in .* \(whole ones: 1\)"):
        checkpoints.restore(4, abstract(state_of(0)))
    for update in (3, 4, 5):  # later saves are not skipped because of what lies there
        checkpoints.save(update, state_of(update), {})
    assert checkpoints.updates() == [1, 3, 4, 5]
    assert checkpoints.partial() == ["2"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refuses_what_is_not_finite(tmp_path: Path, bad: float) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, training_state(mesh_of(2)), {})
    state = training_state(mesh_of(2))
    mu = state["opt"][0].mu["actor"][0]
    mu["a/b.c"] = mu["a/b.c"].at[2].set(bad)
    with pytest.raises(CheckpointError, match=r"opt\.0\.mu\.actor\.0\.a/b\.c has values"):
        checkpoints.save(2, state, {})
    assert checkpoints.updates() == [1]
    assert checkpoints.partial() == []
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoints.save(2, state_of(2), {"return": bad})
    assert checkpoints.updates() == [1]


def test_names_the_first_difference(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state_of(1), {})
    target = abstract(state_of(0))
    with pytest.raises(CheckpointMismatchError, match="it has no leaf 'mean'"):
        checkpoints.restore(1, {**target, "mean": target["count"]})
    with pytest.raises(CheckpointMismatchError, match="its leaf 'weights' is unknown here"):
        checkpoints.restore(1, {"key": target["key"], "count": target["count"]})
    sharding = target["count"].sharding
    wider = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding)
    with pytest.raises(
        CheckpointMismatchError,
        match=r"leaf 'weights' has shape \(64, 64\) there and \(64, 32\) here",
    ):
        checkpoints.restore(1, {**target, "weights": wider})
    halved = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16, sharding=sharding)
    with pytest.raises(CheckpointMismatchError, match="dtype float32 there and bfloat16 here"):
        checkpoints.restore(1, {**target, "weights": halved})
    with pytest.raises(ValueError, match="leaf 'count' of the restore target has no sharding"):
        checkpoints.restore(1, {**target, "count": jax.ShapeDtypeStruct((), jnp.int32)})
    with pytest.raises(ValueError, match="state leaf 'n' is int: only arrays are allowed"):
        checkpoints.save(2, {"n": 3}, {})


def test_params_sha256_by_hand() -> None:
    params = {"b": jnp.asarray([1, 2], jnp.int32), "a": jnp.asarray([[1.5], [-2.0]], jnp.float32)}
    little_endian = np.array([1.5, -2.0], "<f4").tobytes() + np.array([1, 2], "<i4").tobytes()
    expected = hashlib.sha256(little_endian).hexdigest()
    assert params_sha256(params) == expected
    sharded = jax.device_put(params, NamedSharding(mesh_of(2), PartitionSpec("DP")))
    replicated = jax.device_put(params, NamedSharding(mesh_of(2), PartitionSpec()))
    assert params_sha256(sharded) == params_sha256(replicated) == expected
    params["b"] = params["b"].at[0].set(3)
    assert params_sha256(params) != expected
