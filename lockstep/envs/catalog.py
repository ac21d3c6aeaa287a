"""Every task lockstep ships, as plain data. Imports neither JAX nor an environment suite.

A task is asked for by its short name (``cartpole``), by the name its suite gives it
(``CartPole-v1``), or with the suite in front (``gymnax:CartPole-v1``, ``brax:ant``,
``playground:CartpoleBalance``). Two short names exist in gymnax and in brax: ``reacher`` and
``swimmer`` are the brax tasks, gymnax's are ``reacher_misc`` and ``swimmer_misc``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass

from lockstep.errors import UsageError, nearest, unknown

SUITES = ("gymnax", "brax", "playground")
BRAX_BACKENDS = ("spring", "generalized", "positional", "mjx")


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before any environment library is imported.

    ``name`` is the name to ask for, ``env_id`` the suite's own; ``extra`` is the pip extra
    that brings the suite (``None``: always installed); ``action`` is ``"discrete"``,
    ``"continuous"`` or ``None`` where only building the environment tells;
    ``max_episode_steps`` is the default time limit in steps; ``backends`` are the physics
    engines to choose from, ``default_backend`` the one taken if none is named;
    ``download`` says what the task fetches from the network before its first use.
    """

    name: str
    suite: str
    env_id: str
    action: str | None
    observation: str
    max_episode_steps: int | None = None
    extra: str | None = None
    backends: tuple[str, ...] = ()
    default_backend: str | None = None
    aliases: tuple[str, ...] = ()
    download: str | None = None


_MNIST = "the MNIST data set (four files), which gymnax fetches into /tmp/mnist on first use"
_MENAGERIE = "the model repository mujoco_menagerie"

# short name, gymnax id, kind of action, observation, time limit
_GYMNAX: tuple[tuple[str, str, str, str, int], ...] = (
    ("cartpole", "CartPole-v1", "discrete", "4 numbers", 500),
    ("pendulum", "Pendulum-v1", "continuous", "3 numbers", 200),
    ("acrobot", "Acrobot-v1", "discrete", "6 numbers", 500),
    ("mountaincar", "MountainCar-v0", "discrete", "2 numbers", 200),
    ("mountaincar_continuous", "MountainCarContinuous-v0", "continuous", "2 numbers", 999),
    ("asterix", "Asterix-MinAtar", "discrete", "10x10x4 image", 1000),
    ("breakout", "Breakout-MinAtar", "discrete", "10x10x4 image", 1000),
    ("freeway", "Freeway-MinAtar", "discrete", "10x10x7 image", 2500),
    ("seaquest", "Seaquest-MinAtar", "discrete", "10x10x10 image", 1000),
    ("space_invaders", "SpaceInvaders-MinAtar", "discrete", "10x10x6 image", 1000),
    ("catch", "Catch-bsuite", "discrete", "10x5 image", 1000),
    ("deep_sea", "DeepSea-bsuite", "discrete", "8x8 image", 8),
    ("memory_chain", "MemoryChain-bsuite", "discrete", "3 numbers", 1000),
    ("umbrella_chain", "UmbrellaChain-bsuite", "discrete", "3 numbers", 100),
    ("discounting_chain", "DiscountingChain-bsuite", "discrete", "2 numbers", 100),
    ("mnist_bandit", "MNISTBandit-bsuite", "discrete", "28x28 image", 1),
    ("simple_bandit", "SimpleBandit-bsuite", "discrete", "1 number", 100),
    ("four_rooms", "FourRooms-misc", "discrete", "4 numbers", 500),
    ("meta_maze", "MetaMaze-misc", "discrete", "15 numbers", 200),
    ("point_robot", "PointRobot-misc", "continuous", "6 numbers", 100),
    ("bernoulli_bandit", "BernoulliBandit-misc", "discrete", "4 numbers", 100),
    ("gaussian_bandit", "GaussianBandit-misc", "discrete", "4 numbers", 100),
    ("reacher_misc", "Reacher-misc", "continuous", "8 numbers", 100),
    ("swimmer_misc", "Swimmer-misc", "continuous", "16 numbers", 500),
    ("pong", "Pong-misc", "discrete", "30x40x3 image", 1000),
    ("frozen_lake", "FrozenLake-misc", "discrete", "one of 16 cells", 100),
)

# name, size of the observation with the default back-end
_BRAX: tuple[tuple[str, int], ...] = (
    ("ant", 27),
    ("halfcheetah", 17),
    ("hopper", 11),
    ("walker2d", 17),
    ("humanoid", 244),
    ("inverted_pendulum", 4),
    ("inverted_double_pendulum", 8),
    ("reacher", 11),
    ("swimmer", 8),
    ("pusher", 23),
)

_DM_CONTROL: tuple[tuple[str, int], ...] = (
    ("AcrobotSwingup", 6),
    ("AcrobotSwingupSparse", 6),
    ("BallInCup", 8),
    ("CartpoleBalance", 5),
    ("CartpoleBalanceSparse", 5),
    ("CartpoleSwingup", 5),
    ("CartpoleSwingupSparse", 5),
    ("CheetahRun", 17),
    ("FingerSpin", 9),
    ("FingerTurnEasy", 12),
    ("FingerTurnHard", 12),
    ("FishSwim", 24),
    ("HopperHop", 15),
    ("HopperStand", 15),
    ("HumanoidStand", 67),
    ("HumanoidWalk", 67),
    ("HumanoidRun", 67),
    ("PendulumSwingup", 3),
    ("PointMass", 4),
    ("ReacherEasy", 6),
    ("ReacherHard", 6),
    ("SwimmerSwimmer6", 25),
    ("WalkerRun", 24),
    ("WalkerStand", 24),
    ("WalkerWalk", 24),
)

_ROBOTS: tuple[str, ...] = (
    "AeroCubeRotateZAxis",
    "AlohaHandOver",
    "AlohaSinglePegInsertion",
    "ApolloJoystickFlatTerrain",
    "BarkourJoystick",
    "BerkeleyHumanoidJoystickFlatTerrain",
    "BerkeleyHumanoidJoystickRoughTerrain",
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
    "Go1Footstand",
    "Go1Getup",
    "Go1Handstand",
    "Go1JoystickFlatTerrain",
    "Go1JoystickRoughTerrain",
    "H1InplaceGaitTracking",
    "H1JoystickGaitTracking",
    "LeapCubeReorient",
    "LeapCubeRotateZAxis",
    "Op3Joystick",
    "PandaOpenCabinet",
    "PandaPickCube",
    "PandaPickCubeCartesian",
    "PandaPickCubeOrientation",
    "PandaRobotiqPushCube",
    "SpotFlatTerrainJoystick",
    "SpotGetup",
    "SpotJoystickGaitTracking",
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
)


def _snake(name: str) -> str:
    """``CartpoleBalance`` as ``cartpole_balance``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _playground(name: str, observation: str, download: str | None = None) -> TaskInfo:
    return TaskInfo(
        name=name,
        suite="playground",
        env_id=name,
        action="continuous",
        observation=observation,
        max_episode_steps=None if download else 1000,
        extra="playground",
        backends=("jax",),
        default_backend="jax",
        aliases=(_snake(name),),
        download=download,
    )


def _tasks() -> dict[str, TaskInfo]:
    found: list[TaskInfo] = []
    for name, env_id, action, observation, limit in _GYMNAX:
        download = _MNIST if name == "mnist_bandit" else None
        found.append(
            TaskInfo(
                name, "gymnax", env_id, action, observation, limit, aliases=(env_id,),
                download=download,
            )
        )  # fmt: skip
    for name, size in _BRAX:
        # brax builds its swimmer for one engine alone.
        backends = ("generalized",) if name == "swimmer" else BRAX_BACKENDS
        found.append(
            TaskInfo(
                name, "brax", name, "continuous", f"{size} numbers", 1000, "brax",
                backends, backends[0],
            )
        )  # fmt: skip
    found.extend(_playground(name, f"{size} numbers") for name, size in _DM_CONTROL)
    found.extend(_playground(name, "the robot's state", _MENAGERIE) for name in _ROBOTS)
    return {info.name: info for info in found}


TASKS: dict[str, TaskInfo] = _tasks()
ALIASES: dict[str, str] = {
    alias: info.name for info in TASKS.values() for alias in (info.name, *info.aliases)
}


def names(suite: str | None = None) -> list[str]:
    """Return the short names of every task, or of one suite's, in the catalogue's order."""
    return [name for name, info in TASKS.items() if suite in (None, info.suite)]


def resolve(task: str) -> TaskInfo:
    """Return the task that ``task`` names; ``resolve(info.name)`` gives the same task again.

    Takes a short name, a suite's own name, ``suite:name``, or the dotted path of a user's own
    environment (``my_pkg.my_mod:make_env`` or ``my_pkg.my_mod.MyEnv``), which is looked up in
    the working directory and among the installed packages but not imported here.

    Raises:
        UsageError: no such task; the sentence has the nearest name.
    """
    if not isinstance(task, str) or not task:
        raise UsageError(f"a task is a name such as 'cartpole', got {task!r}")
    if task in ALIASES:
        return TASKS[ALIASES[task]]
    suite, colon, rest = task.partition(":")
    if colon and suite in SUITES:
        return _resolve_within(suite, rest)
    if _is_dotted_path(task):
        return _resolve_custom(task)
    raise unknown("task", task, ALIASES)


def _resolve_within(suite: str, rest: str) -> TaskInfo:
    # Inside a suite the prefix removes the ambiguity, so gymnax:reacher is gymnax's own.
    own = {alias: name for alias, name in ALIASES.items() if TASKS[name].suite == suite}
    if suite == "gymnax":
        own |= {"reacher": "reacher_misc", "swimmer": "swimmer_misc"}
    if rest in own:
        return TASKS[own[rest]]
    raise UsageError(
        f"unknown {suite} task {rest!r}: did you mean '{suite}:{nearest(rest, own)}'? "
        "(lockstep list tasks shows all)"
    )


def _is_dotted_path(task: str) -> bool:
    name = r"[A-Za-z_]\w*"
    return re.fullmatch(rf"{name}(\.{name})*(:{name}|\.{name})(\.{name})*", task) is not None


def _resolve_custom(task: str) -> TaskInfo:
    import_from_working_directory()
    package = re.split(r"[.:]", task)[0]
    if importlib.util.find_spec(package) is None:
        hint = nearest(task.rpartition(":")[2], ALIASES)
        raise UsageError(
            f"unknown task {task!r}: there is neither a suite nor an importable module "
            f"{package!r} (suites: {', '.join(SUITES)}; nearest task: {hint!r})"
        )
    return TaskInfo(task, "custom", task, action=None, observation="as its space says")


def import_from_working_directory() -> None:
    """Make modules that lie in the working directory importable, behind everything installed."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)
