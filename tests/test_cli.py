"""The command line as a user meets it: text, exit codes, and what it does not load."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import lockstep
from lockstep import cli
from lockstep.compose import compose, from_yaml, to_yaml
from lockstep.config import RunConfig
from lockstep.errors import StopRequested, TrainingFailed

HEAVY = ("jax", "jaxlib", "torch", "gymnasium")
HELP_PAGES: list[list[str]] = [[], ["train"], ["evaluate"], ["list"], ["version"]]


class Outcome(NamedTuple):
    """What a command left with."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command line inside this process, on two CPU devices."""
    monkeypatch.setenv("LOCKSTEP_CPU_DEVICES", "2")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        text = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Outcome(left.value.code, text.out, text.err)

    return run


class Result(NamedTuple):
    """The fields of a result that the table at the end shows."""

    return_mean: float = 499.5
    return_std: float = 1.25
    eval_episodes: int = 128
    env_steps_per_second: float = 123456.7


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host loop that records what it is asked to run, or raises what it is told to."""
    loop: Any = ModuleType("lockstep.training")
    loop.calls, loop.error = [], None

    def train_run(cfg: RunConfig, *, run_dir: str | None, resume: str | None) -> Result:
        loop.calls.append((cfg, run_dir, resume))
        if loop.error is not None:
            raise loop.error
        return Result()

    def evaluate_run(run: str, episodes: int | None, stochastic: bool) -> Result:
        loop.calls.append((run, episodes, stochastic))
        return Result()

    loop.train_run, loop.evaluate_run = train_run, evaluate_run
    monkeypatch.setitem(sys.modules, "lockstep.training", loop)
    monkeypatch.setitem(sys.modules, "lockstep.evaluating", loop)
    return loop


def make_run(folder: Path, cfg: RunConfig) -> Path:
    """A run's folder with its configuration and one (empty) commit."""
    (folder / "checkpoints" / "3").mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(cfg))
    return folder


# Help and start-up


@pytest.mark.parametrize("page", HELP_PAGES, ids=lambda page: " ".join(page) or "lockstep")
def test_help_fits_eighty_columns(page: list[str], command: Any) -> None:
    found = command(*page, "--help")
    assert found.code == 0
    assert max(len(line) for line in found.out.splitlines()) <= 80
    assert "…" not in found.out


def test_every_size_flag_says_global(command: Any) -> None:
    text = re.sub(r"[│\s]+", " ", command("train", "--help").out)
    options = re.findall(r"(--[\w-]+) (?:<?\w+>? )?([A-Z].*?)(?= --|╰)", text)
    texts = dict(options)
    sizes = [name for name in texts if re.search(r"num|steps|iterations", name)]
    assert len(sizes) == 5
    assert [name for name in sizes if "global" not in texts[name]] == []


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["train", "cartpole", "--dry-run"], ["list", "tasks"]],
    ids=" ".join,
)
def test_starts_in_under_a_second_and_loads_neither_jax_nor_torch(words: list[str]) -> None:
    script = (
        f"import sys\nfrom lockstep.cli import main\ntry:\n    main({words!r})\n"
        f"finally:\n    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    seconds = []
    for _ in range(3):  # the fastest of three: the machine may be busy
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
        )
        seconds.append(time.perf_counter() - start)
        assert (done.returncode, done.stderr.strip()) == (0, "[]")
        if seconds[-1] < 1:
            break
    assert min(seconds) < 1


def test_module_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, lockstep.__version__)


def test_the_python_face_reaches_the_host_loop(training: Any) -> None:
    lockstep.train("cartpole", num_envs=64, run_dir="here")
    ((cfg, run_dir, resume),) = training.calls
    assert (cfg.num_envs, run_dir, resume) == (64, "here", None)


# Dry run


def test_dry_run_prints_sizes_and_where_values_came_from(command: Any, tmp_path: Path) -> None:
    found = command("train", "cartpole", "--dry-run", "--num_envs", "1024", "algo.gamma=0.98")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert "# devices:      2 cpu" in lines
    assert "# environments: 512 per device x 2 = 1024" in lines
    assert "# blocks:       8 per device x 2 = 16" in lines
    assert "# updates:      62 x 32768 environment steps = 2031616" in lines
    assert any(re.fullmatch(r"num_envs: 1024 +# --num-envs", line) for line in lines)
    assert any(re.fullmatch(r"total_steps: 2000000 +# tuned/ppo/cartpole.yaml", x) for x in lines)
    assert any(re.fullmatch(r"  gamma: 0.98 +# algo.gamma=0.98", line) for line in lines)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "plan.yaml").write_text(found.out)  # the text is a configuration
    assert from_yaml(tmp_path / "plan.yaml").num_envs == 1024


def test_dry_run_as_json(command: Any) -> None:
    found = command("train", "pendulum", "--dry-run", "--json", "--algo=a2c", "--seed", "7")
    plan = json.loads(found.out)
    assert (plan["task"], plan["algorithm"], plan["seed"]) == ("pendulum", "a2c", 7)
    assert plan["num_envs"] == plan["num_envs_per_device"] * plan["devices"] == 2048
    assert plan["config"]["algo"]["num_minibatches"] == 1
    assert plan["sources"]["seed"] == "--seed"
    assert plan["run_dir"].startswith("runs/pendulum/a2c/")


# What training is asked for


def test_train_hands_over_the_configuration_and_prints_the_result(
    command: Any, training: Any
) -> None:
    found = command("train", "cartpole", "--max_iterations=3", "--run-dir", "out")
    ((cfg, run_dir, resume),) = training.calls
    assert (cfg.updates, run_dir, resume) == (3, "out", None)
    assert found == Outcome(
        0,
        "task        cartpole\nreturn      499.50 +- 1.25\nepisodes    128\n"
        "steps/s     123,457\nrun folder  out\n",
        "",
    )


def test_resume_goes_on_with_the_runs_own_configuration(command: Any, training: Any) -> None:
    saved = compose("pendulum", "a2c", ["num_envs=64", "max_iterations=2"])
    run = make_run(Path("runs/pendulum/a2c/20260101-000000-seed0"), saved)
    assert command("train", "--resume", "latest", "max_iterations=5").code == 0
    assert command("train", "pendulum", "--resume", str(run)).code == 0
    (longer, _, resume), (same, run_dir, _) = training.calls
    assert (longer.updates, longer.algo, resume) == (5, saved.algo, str(run))
    assert (same, run_dir) == (saved, None)


def test_evaluate(command: Any, training: Any) -> None:
    run = make_run(Path("run"), compose("cartpole"))
    found = command("evaluate", str(run), "--episodes", "16", "--stochastic")
    assert training.calls == [("run", 16, True)]
    assert (found.code, found.out.splitlines()[0]) == (0, "task        cartpole")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (TrainingFailed("the loss is not finite"), 1, "the loss is not finite"),
        (StopRequested(143, 9), 143, "stopped on request after update 9"),
        (StopRequested(130, 9), 130, "stopped on request after update 9"),
        (KeyboardInterrupt(), 130, "stopped on request"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, sentence: str, command: Any, training: Any
) -> None:
    training.error = error
    found = command("train", "cartpole")
    assert (found.code, found.out, found.err.strip()) == (code, "", f"lockstep: {sentence}")


def test_list(command: Any) -> None:
    assert command("list", "algorithms").out.splitlines() == [
        "ppo         Proximal policy optimisation (Schulman et al. 2017).",
        "a2c         Synchronous advantage actor-critic (Mnih et al. 2016).",
    ]
    assert re.search(r"^ant +brax +continuous +needs", command("list", "tasks").out, re.M)


# Refusals


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("tran cartpole", "unknown command 'tran': did you mean 'train'?"),
        ("train cartpol", "unknown task 'cartpol': did you mean 'cartpole'?"),
        ("train", "no task was given: lockstep list tasks shows all"),
        ("train cartpole --algo pp", "unknown algorithm 'pp': did you mean 'ppo'?"),
        ("train cartpole --num-env 5", "unknown option '--num-env': did you mean '--num-envs'?"),
        ("train cartpole --max-iteration=5", "unknown option '--max-iteration': did you mean"),
        ("train cartpole --processes 2", "unknown option '--processes': did you mean"),
        ("train cartpole --num-envs", "option '--num-envs' requires an argument"),
        ("train cartpole --num-envs abc", "num_envs=abc is not a whole number"),
        ("train cartpole --num-envs 0", "num_envs=0 is out of range"),
        ("train cartpole --num-envs 5 num_envs=6", "two values are given for num_envs"),
        ("train cartpole --seed 1 --seed=2", "the option --seed is given twice"),
        ("train cartpole --num-devices 9 --dry-run", "num_devices=9 is more than the 2 devices"),
        (
            "train cartpole --num-envs 10 --num-devices 3",
            "num_envs=10 (global) does not divide into algo.num_minibatches=4 on 3 devices: "
            "the nearest valid num_envs are 8 and 16",
        ),
        ("train cartpole lr_rate=1e-2", "unknown key 'lr_rate': did you mean"),
        ("train cartpole algo.gama=0.9", "unknown key 'algo.gama': did you mean 'algo.gamma'?"),
        ("train cartpole --config no.yaml", "there is no configuration file 'no.yaml'"),
        ("train cartpole --run-dir full", "the run folder 'full' exists and is not empty"),
        ("train cartpole --resume nowhere", "there is no run 'nowhere'"),
        ("train --resume full", "'full' is no run: it has no config.yaml"),
        ("train cartpole --json", "--json prints the plan of --dry-run: give both"),
        ("evaluate nowhere", "there is no run 'nowhere'"),
        ("evaluate full --episodes -3", "--episodes -3 is not a whole number of at least 1"),
        ("list task", "unknown list 'task': did you mean 'tasks'?"),
    ],
)
def test_refused_in_one_sentence_with_nothing_written(
    line: str, sentence: str, command: Any, training: Any, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    found = command(*line.split())
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"lockstep: {sentence}")
    assert found.err.count("\n") == 1
    assert training.calls == []
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
