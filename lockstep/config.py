"""One run in global quantities, as frozen dataclasses. Imports no JAX.

Every field is a key of the configuration with its meaning and its range; a value out of
range is a :class:`~lockstep.errors.UsageError` when the dataclass is made. Sizes are global
over all devices; :mod:`lockstep.sizes` divides them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError, nearest, unknown
from lockstep.schema import check, key
from lockstep.sizes import derive_num_blocks, devices_used, plan_devices, validate

__all__ = [
    "ALGORITHMS",
    "A2CConfig",
    "EnvConfig",
    "OnPolicyConfig",
    "PPOConfig",
    "RunConfig",
    "UsageError",
    "algorithm_config",
    "derive_num_blocks",
    "devices_used",
    "nearest",
    "plan_devices",
    "validate",
]


@dataclass(frozen=True)
class OnPolicyConfig:
    """What every on-policy algorithm shares; sizes are global."""

    name: str = key("ppo", "The algorithm; chosen by `--algo`.")
    learning_rate: float = key(3e-4, "Step size of the optimiser at the start.", gt=0)
    lr_schedule: str = key(
        "constant",
        "How the step size changes over the run: `adaptive` keeps the KL divergence of an "
        "update near `algo.desired_kl`.",
        choices=("constant", "linear", "cosine", "adaptive"),
    )
    desired_kl: float = key(0.01, "KL divergence an update aims at (`adaptive` only).", gt=0)
    gamma: float = key(0.99, "Discount of a reward one step later.", ge=0, le=1)
    gae_lambda: float = key(0.95, "Decay of generalised advantage estimation.", ge=0, le=1)
    entropy_coef: float = key(0.0, "Weight of the entropy bonus in the loss.", ge=0)
    value_coef: float = key(0.5, "Weight of the value loss.", ge=0)
    max_grad_norm: float = key(0.5, "Largest global norm of a gradient.", gt=0)
    adam_eps: float = key(1e-5, "Epsilon of Adam.", gt=0)
    weight_decay: float = key(0.0, "Decoupled weight decay (AdamW); 0: Adam.", ge=0)
    rollout_length: int = key(32, "Steps each environment makes in one update.", ge=1)
    num_epochs: int = key(4, "Passes over the rollout in one update.", ge=1)
    num_minibatches: int = key(
        4, "Minibatches of one epoch (global: each is spread over all devices).", ge=1
    )
    shuffle: str = key(
        "environments",
        "What a minibatch is drawn from: whole environments or single samples, inside blocks.",
        choices=("environments", "samples"),
    )
    hidden_sizes: tuple[int, ...] = key(
        (64, 64), "Units of each hidden layer, for the actor and the critic each.", ge=1
    )
    activation: str = key(
        "tanh",
        "Non-linearity of the hidden layers.",
        choices=("tanh", "relu", "elu", "gelu", "silu"),
    )
    normalize_obs: bool = key(False, "Scale observations by running global statistics.")
    normalize_reward: bool = key(False, "Scale rewards by the running spread of the return.")
    normalize_advantage: bool = key(
        True, "Scale advantages by the statistics of the whole rollout (global)."
    )
    tanh_squash: bool = key(False, "Squash continuous actions into the space's bounds by tanh.")
    init_log_std: float = key(0.0, "Logarithm of the first standard deviation (continuous).")

    def __post_init__(self) -> None:
        check(self, "algo.")


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    clip_epsilon: float = key(0.2, "How far the policy's ratio may leave 1.", gt=0)
    clip_value_loss: bool = key(False, "Clip the value's change by `algo.clip_epsilon` too.")


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Synchronous advantage actor-critic (Mnih et al. 2016)."""

    name: str = key("a2c", "The algorithm; chosen by `--algo`.")
    num_epochs: int = key(1, "Passes over the rollout in one update.", ge=1)
    num_minibatches: int = key(
        1, "Minibatches of one epoch (global: each is spread over all devices).", ge=1
    )


ALGORITHMS: dict[str, type[OnPolicyConfig]] = {"ppo": PPOConfig, "a2c": A2CConfig}


def algorithm_config(name: str) -> type[OnPolicyConfig]:
    """The configuration class of an algorithm; ``UsageError`` with the nearest name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


@dataclass(frozen=True)
class EnvConfig:
    """How the task is built; ``kwargs`` reach the suite's own constructor."""

    backend: str | None = key(None, "Back-end of the suite, such as brax's `spring`.")
    kwargs: dict[str, Any] = key(
        factory=dict,
        doc="Arguments of the environment's own constructor, as `env.kwargs.NAME=VALUE`; "
        "the environment itself refuses what it does not know.",
    )

    def __post_init__(self) -> None:
        check(self, "env.")


@dataclass(frozen=True)
class RunConfig:
    """Everything one run depends on; sizes are global over all devices."""

    task: str = key("cartpole", "What to learn: a name of `lockstep list tasks`, or a dotted path.")
    library: str = key("lockstep", "Who trains.", choices=("lockstep",))
    seed: int = key(0, "Seed of every random key.", ge=0, le=2**32 - 1)
    num_envs: int = key(2048, "Environments stepped together (global, over all devices).", ge=1)
    total_steps: int = key(
        2_000_000,
        "Environment steps of the whole run (global); rounded up to whole updates.",
        ge=1,
        le=2**63 - 1,
    )
    max_iterations: int | None = key(
        None, "Updates of the whole run (global), instead of `total_steps`.", ge=1
    )
    num_blocks: int | None = key(
        None,
        "Blocks the environments fall into (global): the unit of keys, shuffling and exact "
        "sums; null: derived from the sizes, never from the devices.",
        ge=1,
    )
    reduction: str = key(
        "auto",
        "How gradients are summed: `exact` gives the same bits on any number of devices.",
        choices=("auto", "fast", "exact"),
    )
    num_devices: int | None = key(None, "Most devices to use (global); null: all.", ge=1)
    enable_multi_devices: str = key(
        "auto",
        "Whether more than one device must be used, may be, or must not be.",
        choices=("auto", "true", "false"),
    )
    workflow_cls: str | None = key(None, "Your own workflow class, by its dotted path.")
    nan_policy: str = key(
        "reset",
        "What a reward or observation that is not finite does: reset that environment and "
        "count it, or fail the run.",
        choices=("reset", "fail"),
    )
    eval_episodes: int = key(128, "Whole episodes of one evaluation (global).", ge=1)
    eval_interval: int = key(0, "Updates between evaluations; 0: at the end alone.", ge=0)
    checkpoint_interval: int = key(0, "Updates between commits; 0: ten a run.", ge=0)
    keep_checkpoints: int = key(3, "Commits that are kept.", ge=1)
    tensorboard: bool = key(True, "Write TensorBoard events.")
    wandb: bool = key(False, "Send the metrics to Weights & Biases.")
    compile_cache: str | None = key(
        "default", "Folder of compiled programs; `default`: the user's cache; null: none."
    )
    env: EnvConfig = key(factory=EnvConfig, doc="The environment's section.")
    algo: OnPolicyConfig = key(factory=PPOConfig, doc="The algorithm's section.")

    def __post_init__(self) -> None:
        check(self)
        if type(self.algo) is not algorithm_config(self.algo.name):
            raise UsageError(
                f"algo.name={self.algo.name} does not fit {type(self.algo).__name__}: "
                f"{ALGORITHMS[self.algo.name].__name__} is its configuration"
            )

    @property
    def blocks(self) -> int:
        """``num_blocks``, or the number derived from the sizes."""
        if self.num_blocks is not None:
            return self.num_blocks
        algo = self.algo
        return derive_num_blocks(
            self.num_envs, algo.rollout_length, algo.num_minibatches, algo.shuffle
        )

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update, over all devices."""
        return self.num_envs * self.algo.rollout_length

    @property
    def updates(self) -> int:
        """Updates of the whole run, counted from its very start."""
        if self.max_iterations is not None:
            return self.max_iterations
        return -(-self.total_steps // self.steps_per_update)
