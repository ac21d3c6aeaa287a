"""One run in global quantities, as frozen dataclasses. Imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OnPolicyConfig:
    """What every on-policy algorithm shares; sizes are global."""

    name: str = "ppo"
    learning_rate: float = 3e-4
    lr_schedule: str = "constant"  # constant | linear | cosine | adaptive (by KL)
    desired_kl: float = 0.01
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_coef: float = 0.0
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    weight_decay: float = 0.0
    rollout_length: int = 32
    num_epochs: int = 4
    num_minibatches: int = 4
    shuffle: str = "environments"  # environments | samples
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    normalize_obs: bool = False
    normalize_reward: bool = False
    normalize_advantage: bool = True
    tanh_squash: bool = False
    init_log_std: float = 0.0


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    clip_epsilon: float = 0.2
    clip_value_loss: bool = False


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Synchronous advantage actor-critic (Mnih et al. 2016)."""

    name: str = "a2c"
    num_epochs: int = 1
    num_minibatches: int = 1


@dataclass(frozen=True)
class EnvConfig:
    """How the task is built; ``kwargs`` reach the suite's own constructor."""

    backend: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunConfig:
    """Everything one run depends on; sizes are global over all devices."""

    task: str = "cartpole"
    library: str = "lockstep"
    seed: int = 0
    num_envs: int = 2048
    total_steps: int = 2_000_000
    num_blocks: int = 32
    reduction: str = "auto"  # auto | fast | exact
    num_devices: int | None = None
    enable_multi_devices: str = "auto"  # true | false | auto
    workflow_cls: str | None = None
    nan_policy: str = "reset"  # reset | fail
    eval_episodes: int = 128
    eval_interval: int = 0  # updates between evaluations; 0: at the end alone
    checkpoint_interval: int = 0  # updates between commits; 0: ten a run
    keep_checkpoints: int = 3
    tensorboard: bool = True
    wandb: bool = False
    compile_cache: str | None = "default"
    env: EnvConfig = field(default_factory=EnvConfig)
    algo: OnPolicyConfig = field(default_factory=PPOConfig)
