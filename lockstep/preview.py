"""What a run will be, in numbers, before it starts: the header and ``--dry-run``. No JAX."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lockstep.config import RunConfig
from lockstep.sizes import plan_devices, reduction_used


@dataclass(frozen=True)
class Preview:
    """The sizes of one run. Every count without ``per_device`` is global."""

    task: str
    algorithm: str
    library: str
    seed: int
    device_kind: str
    devices_found: int
    devices: int
    num_envs: int
    num_envs_per_device: int
    num_blocks: int
    num_blocks_per_device: int
    rollout_length: int
    steps_per_update: int
    minibatch_samples: int
    minibatch_samples_per_device: int
    updates: int
    total_steps: int
    idle: str
    reduction: str
    eval_episodes: int

    def lines(self) -> list[str]:
        """The header of the run, a line a fact, at most 80 columns where names are short."""
        many = self.devices
        return [
            f"task:         {self.task}",
            f"algorithm:    {self.algorithm} ({self.library}), seed {self.seed}",
            f"devices:      {many} {self.device_kind}{self.idle}",
            f"environments: {_split(self.num_envs_per_device, many, self.num_envs)}",
            f"blocks:       {_split(self.num_blocks_per_device, many, self.num_blocks)}",
            "minibatch:    "
            + _split(self.minibatch_samples_per_device, many, self.minibatch_samples)
            + " samples",
            f"updates:      {self.updates} x {self.steps_per_update} environment steps "
            f"= {self.total_steps}",
            f"reduction:    {self.reduction}",
        ]

    def as_dict(self) -> dict[str, int | str]:
        """Every field by its name."""
        return asdict(self)


def preview(cfg: RunConfig, device_kind: str, available: int) -> Preview:
    """The numbers of ``cfg`` on ``available`` devices; ``UsageError`` if it does not fit."""
    devices = plan_devices(cfg, available)
    minibatch = cfg.steps_per_update // cfg.algo.num_minibatches
    return Preview(
        task=cfg.task,
        algorithm=cfg.algo.name,
        library=cfg.library,
        seed=cfg.seed,
        device_kind=device_kind,
        devices_found=available,
        devices=devices,
        num_envs=cfg.num_envs,
        num_envs_per_device=cfg.num_envs // devices,
        num_blocks=cfg.blocks,
        num_blocks_per_device=cfg.blocks // devices,
        rollout_length=cfg.algo.rollout_length,
        steps_per_update=cfg.steps_per_update,
        minibatch_samples=minibatch,
        minibatch_samples_per_device=minibatch // devices,
        updates=cfg.updates,
        total_steps=cfg.updates * cfg.steps_per_update,
        idle=_idle(cfg, devices, available),
        reduction=reduction_used(cfg.reduction, device_kind),
        eval_episodes=cfg.eval_episodes,
    )


def _split(per_device: int, devices: int, total: int) -> str:
    return f"{per_device} per device x {devices} = {total}"


def _idle(cfg: RunConfig, used: int, available: int) -> str:
    """Which devices stay idle and why; empty if none."""
    if used == available:
        return ""
    if cfg.enable_multi_devices == "false":
        reason = "enable_multi_devices=false"
    elif used == cfg.num_devices:
        reason = f"num_devices={used}"
    else:
        wanted = cfg.num_devices or available
        reason = f"num_blocks={cfg.blocks} is not divisible by {wanted}"
    return f" ({available - used} of {available} left idle: {reason})"
