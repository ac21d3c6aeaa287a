"""How the global sizes of a run fall into blocks, minibatches and devices.

Pure arithmetic, done before anything is compiled. ``N`` environments in total fall into
``B`` blocks of ``n``; a rollout has ``T`` steps and each epoch ``M`` minibatches. Blocks are
the unit of random keys, shuffling and exact sums, so ``B`` never depends on the number of
devices: the number of devices used is the largest that divides ``B``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lockstep.errors import UsageError

if TYPE_CHECKING:
    from lockstep.config import RunConfig

MOST_STEPS = 2**31 - 1  # of one update: indices have 32 bits
TARGET_SAMPLES = 512  # samples of a minibatch a block, what fits a CPU core's cache
MIN_BLOCKS = 8  # so that eight devices can share the smallest runs


def block_unit(rollout_length: int, num_minibatches: int, shuffle: str) -> int:
    """The environments of a block come in multiples of this.

    Whole environments go to one minibatch (``shuffle="environments"``), or whole shares of
    the block's ``n * T`` samples (``shuffle="samples"``).
    """
    if shuffle == "samples":
        return num_minibatches // math.gcd(num_minibatches, rollout_length)
    return num_minibatches


def derive_num_blocks(
    num_envs: int, rollout_length: int, num_minibatches: int, shuffle: str = "environments"
) -> int:
    """The number of blocks from the sizes alone; ``UsageError`` if no number of blocks fits.

    The largest power of two that divides the environments into whole minibatches with at
    least 512 samples of a minibatch a block, and at least 8 where the sizes allow it.
    """
    unit = block_unit(rollout_length, num_minibatches, shuffle)
    if num_envs % unit:
        raise UsageError(_no_division(num_envs, num_minibatches, unit, 1))
    whole = num_envs // unit
    most = whole & -whole  # the largest power of two that divides
    target = num_envs * rollout_length // (num_minibatches * TARGET_SAMPLES)
    roomy = 1 << (target.bit_length() - 1) if target else 1
    return min(most, max(roomy, MIN_BLOCKS))


def devices_used(num_blocks: int, available: int) -> int:
    """The largest number of devices, at most ``available``, that divides the blocks."""
    return next(d for d in range(max(min(available, num_blocks), 1), 0, -1) if num_blocks % d == 0)


def plan_devices(cfg: RunConfig, available: int) -> int:
    """How many of the ``available`` devices the run uses; ``UsageError`` if it cannot.

    ``num_devices`` is the most it may use, ``enable_multi_devices`` says whether more than
    one must be (true), may be (auto) or must not be used (false).
    """
    wanted = available if cfg.num_devices is None else cfg.num_devices
    if wanted > available:
        raise UsageError(
            f"num_devices={wanted} is more than the {_devices(available)} there "
            f"{'is' if available == 1 else 'are'}: at most {available} is allowed"
        )
    if cfg.enable_multi_devices == "false":
        if cfg.num_devices is not None and cfg.num_devices > 1:
            raise UsageError(
                f"enable_multi_devices=false allows one device, but num_devices={wanted} was given"
            )
        return 1
    used = devices_used(cfg.blocks, wanted)
    if cfg.enable_multi_devices == "true" and used < 2:
        raise UsageError(
            f"enable_multi_devices=true needs two devices or more, but the run would use 1 of "
            f"{available} (num_devices={cfg.num_devices or 'all'}, num_blocks={cfg.blocks}): "
            f"auto uses what there is"
        )
    return used


def reduction_used(reduction: str, device_kind: str) -> str:
    """``auto`` is ``exact`` on CPUs, where it costs nothing, and ``fast`` on accelerators."""
    if reduction == "auto":
        return "exact" if device_kind == "cpu" else "fast"
    return reduction


def check_sizes(cfg: RunConfig, devices: int | None = None) -> None:
    """Refuse environments that do not divide into blocks and minibatches.

    ``devices`` is what the nearest valid sizes should keep busy; nothing else depends on it.
    """
    algo = cfg.algo
    if cfg.steps_per_update > MOST_STEPS:
        raise UsageError(
            f"num_envs={cfg.num_envs} x algo.rollout_length={algo.rollout_length} is more than "
            f"the {MOST_STEPS} environment steps that one update may have"
        )
    unit = block_unit(algo.rollout_length, algo.num_minibatches, algo.shuffle)
    blocks = cfg.num_blocks
    if cfg.num_envs % ((blocks or 1) * unit):
        devices = cfg.num_devices or devices
        step = blocks or 1 << (min(devices or 1, MIN_BLOCKS).bit_length() - 1)
        raise UsageError(
            _no_division(cfg.num_envs, algo.num_minibatches, unit, step, blocks, devices)
        )


def validate(cfg: RunConfig, num_devices: int | None = None) -> None:
    """Refuse sizes that do not divide, before compilation, with the nearest valid ones.

    ``num_devices`` is the number of devices there are (``None``: not known yet, not checked).
    """
    check_sizes(cfg, num_devices)
    if num_devices is not None:
        plan_devices(cfg, num_devices)


def envs_for_devices(per_device: int, devices: int, num_blocks: int | None = None) -> int:
    """The global number of environments for ``per_device`` on each of ``devices`` devices.

    Every device must take part, or the number a device would not be the one asked for.
    """
    used = devices_used(num_blocks or 1 << 30, devices)
    if used != devices:
        blocks = f"num_blocks={num_blocks}" if num_blocks else "blocks in a power of two"
        raise UsageError(
            f"num_envs_per_device={per_device} on {_devices(devices)} cannot use all of them "
            f"with {blocks}: the nearest valid num_devices is {used}"
        )
    return per_device * devices


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _no_division(
    num_envs: int,
    num_minibatches: int,
    unit: int,
    step: int,
    num_blocks: int | None = None,
    devices: int | None = None,
) -> str:
    size = unit * step
    lower = num_envs // size * size
    valid = f"are {lower} and {lower + size}" if lower else f"is {size}"
    parts = f"algo.num_minibatches={num_minibatches}"
    if num_blocks:
        parts = f"num_blocks={num_blocks} x {parts}"
    where = f" on {_devices(devices)}" if devices else ""
    return (
        f"num_envs={num_envs} (global) does not divide into {parts}{where}: "
        f"the nearest valid num_envs {valid}"
    )
