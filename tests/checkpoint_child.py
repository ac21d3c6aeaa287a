"""Save commits as fast as possible until killed; the arrays tell which update they belong to.

Usage: checkpoint_child.py FOLDER FIRST_UPDATE. Prints ``saved N`` after every commit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lockstep.checkpoint import Checkpoints


def state_of(update: int) -> dict[str, jax.Array]:
    return {
        "weights": jnp.full((64, 64), update, jnp.float32),
        "key": jax.random.fold_in(jax.random.key(0), update),
        "count": jnp.asarray(update, jnp.int32),
    }


def abstract(state: Any) -> Any:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def assert_same(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b)
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def main() -> None:
    checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
    update = int(sys.argv[2])
    while True:
        checkpoints.save(update, state_of(update), {"update": update, "steps": update * 2**40})
        print(f"saved {update}", flush=True)
        update += 1


if __name__ == "__main__":
    main()
