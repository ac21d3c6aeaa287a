"""Collectives, keys, gradients and sharding over one mesh, for one process and for several.

Every collective is the identity when its ``axis_name`` is None, so that the same code runs
on one device. ``docs/distributed.md`` shows how the parts are used together.
"""

from lockstep.distributed.comm import (
    all_gather,
    get_global_ranks,
    get_process_id,
    is_dist_initialized,
    pmax,
    pmean,
    pmin,
    psum,
    split_key_to_devices,
)
from lockstep.distributed.gradients import agent_gradient_update, gradient_update
from lockstep.distributed.mesh import DP_AXIS_NAME, POP_AXIS_NAME
from lockstep.distributed.sharding import shmap_map, shmap_vmap, tree_device_put

__all__ = [
    "DP_AXIS_NAME",
    "POP_AXIS_NAME",
    "agent_gradient_update",
    "all_gather",
    "get_global_ranks",
    "get_process_id",
    "gradient_update",
    "is_dist_initialized",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "shmap_map",
    "shmap_vmap",
    "split_key_to_devices",
    "tree_device_put",
]
