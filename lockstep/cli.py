"""The command line. Loads neither JAX nor torch before a request is known to be right.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done,
1 the training failed, 2 the request was wrong, 130 and 143 stopped on request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from lockstep.errors import StopRequested, TrainingFailed, UsageError, unknown
from lockstep.version import VERSION

if TYPE_CHECKING:
    from lockstep.runs import Prepared

OPTIONS, RUN, SIZES, OUTPUT = (
    "Options",
    "The run",
    "Sizes (all global, over all devices)",
    "Folders and output",
)
COMMANDS = ("train", "evaluate", "list", "version")

app = typer.Typer(
    help="Train reinforcement-learning policies on every device: the same command, the same "
    "result.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 80,
    },
)


def _option(name: str, metavar: str, panel: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


Task = typer.Argument(metavar="TASK", help="What to learn (lockstep list tasks).")
Words = typer.Argument(
    metavar="KEY=VALUE",
    help="Keys of the configuration, such as algo.gamma=0.98 (docs/configuration.md).",
)
Run = typer.Argument(metavar="RUN", help="A run's folder, or latest.")
What = typer.Argument(metavar="tasks|algorithms", help="What to list.")
Algo = _option("--algo", "NAME", RUN, "Algorithm; default: ppo.")
Library = _option("--library", "NAME", RUN, "Who trains; default: lockstep.")
Seed = _option("--seed", "N", RUN, "Seed of every random key; default: 0.")
Config = _option("--config", "FILE", RUN, "Overlay file over the defaults.")
Resume = _option(
    "--resume", "RUN", RUN, "Go on with a run: its folder, or latest. TASK may be left out."
)
NumEnvs = _option("--num-envs", "N", SIZES, "Environments (global).")
PerDevice = _option("--num-envs-per-device", "N", SIZES, "The same, said per device; made global.")
TotalSteps = _option("--total-steps", "N", SIZES, "Environment steps (global).")
MaxIterations = _option(
    "--max-iterations", "N", SIZES, "Updates (global), counted from the run's very start."
)
NumDevices = _option("--num-devices", "N", SIZES, "Most devices to use (global); default: all.")
RunDir = _option("--run-dir", "DIR", OUTPUT, "Folder of the run; new or empty.")
DryRun = _option("--dry-run", "", OUTPUT, "Print the sizes and every key; start nothing.")
Json = _option("--json", "", OUTPUT, "With --dry-run: print JSON.")
Episodes = _option("--episodes", "N", OPTIONS, "Whole episodes (global); default: as configured.")
Stochastic = _option("--stochastic", "", OPTIONS, "Sample actions instead of taking the best.")


@app.command()
def train(
    task: Annotated[str | None, Task] = None,
    words: Annotated[list[str] | None, Words] = None,
    algo: Annotated[str | None, Algo] = None,
    library: Annotated[str | None, Library] = None,
    seed: Annotated[str | None, Seed] = None,
    config: Annotated[str | None, Config] = None,
    resume: Annotated[str | None, Resume] = None,
    num_envs: Annotated[str | None, NumEnvs] = None,
    num_envs_per_device: Annotated[str | None, PerDevice] = None,
    total_steps: Annotated[str | None, TotalSteps] = None,
    max_iterations: Annotated[str | None, MaxIterations] = None,
    num_devices: Annotated[str | None, NumDevices] = None,
    run_dir: Annotated[str | None, RunDir] = None,
    dry_run: Annotated[bool, DryRun] = False,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Train one policy on all local devices; ends with an evaluation.

    Every size is global: it does not change with the number of devices.
    """
    from lockstep.compose import compose_with_sources
    from lockstep.runs import prepare

    if as_json and not dry_run:
        raise UsageError("--json prints the plan of --dry-run: give both")
    words = words or []
    if task is not None and "=" in task:  # with --resume the task may be left out
        words, task = [task, *words], None
    given = {
        "library": library,
        "seed": seed,
        "num_envs": num_envs,
        "num_envs_per_device": num_envs_per_device,
        "total_steps": total_steps,
        "max_iterations": max_iterations,
        "num_devices": num_devices,
    }
    options = {key: value for key, value in given.items() if value is not None}
    ready = prepare(
        task,
        run_dir,
        resume,
        lambda base: compose_with_sources(task, algo, words, config, options, base),
    )
    if dry_run:
        print(_dry_run(ready, as_json))
        return
    folder = str(ready.run_dir)
    where: dict[str, str | None] = {"run_dir": folder, "resume": None}
    if ready.resumed:
        where = {"run_dir": None, "resume": folder}
    old = signal.signal(signal.SIGINT, _leave_at_once)  # until the host loop takes over
    try:
        from lockstep.training import train_run

        result = train_run(ready.config, **where)
    finally:
        signal.signal(signal.SIGINT, old)
    print(_table(result, ready.config.task, folder))


def _leave_at_once(number: int, frame: Any) -> None:
    """Leave while JAX loads: an exception raised in there may be lost or become another."""
    os.write(2, b"lockstep: stopped before the training began\n")
    os._exit(128 + number)


def _dry_run(ready: Prepared, as_json: bool) -> str:
    from lockstep.compose import annotate, to_yaml
    from lockstep.devices import expected_devices
    from lockstep.layers import as_tree
    from lockstep.preview import preview

    cfg, sources = ready.config, ready.composition.sources
    devices = expected_devices()
    plan = preview(cfg, devices.kind, devices.count)
    if as_json:
        place = {"run_dir": str(ready.run_dir), "resumed": ready.resumed}
        tree = plan.as_dict() | place | {"config": as_tree(cfg), "sources": dict(sources)}
        return json.dumps(tree, indent=2)
    head = [*plan.lines(), f"run folder:   {ready.run_dir}{' (resumed)' * ready.resumed}"]
    return "\n".join([*(f"# {line}" for line in head), annotate(to_yaml(cfg), sources)])


def _table(result: Any, task: str, folder: str) -> str:
    rows = [("task", task), ("return", f"{result.return_mean:.2f} +- {result.return_std:.2f}")]
    rows.append(("episodes", str(result.eval_episodes)))
    for name in ("nan", "unfinished"):
        if count := getattr(result, f"{name}_episodes", 0):
            rows.append(("  of these", f"{count} {name}: their returns are cut off"))
    if getattr(result, "env_steps_per_second", None) is not None:
        rows.append(("steps/s", f"{result.env_steps_per_second:,.0f}"))
    rows.append(("run folder", folder))
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


@app.command()
def evaluate(
    run: Annotated[str, Run],
    episodes: Annotated[str | None, Episodes] = None,
    stochastic: Annotated[bool, Stochastic] = False,
) -> None:
    """Evaluate the last checkpoint of a run over whole episodes."""
    from lockstep import api
    from lockstep.compose import from_yaml
    from lockstep.runs import find_run

    count = None
    if episodes is not None:
        if not episodes.isdecimal() or int(episodes) < 1:
            raise UsageError(f"--episodes {episodes} is not a whole number of at least 1")
        count = int(episodes)
    folder = find_run(run)
    task = from_yaml(folder / "config.yaml").task
    result = api.evaluate(folder, episodes=count, stochastic=stochastic)
    print(_table(result, task, str(folder)))


@app.command("list")
def list_names(what: Annotated[str, What]) -> None:
    """List the tasks or the algorithms there are."""
    if what == "tasks":
        from lockstep.envs.catalog import TASKS

        for info in TASKS.values():
            extra = f"  needs lockstep-rl[{info.extra}]" if info.extra else ""
            print(f"{info.name:<36} {info.suite:<11} {info.action or '':<11}{extra}".rstrip())
    elif what == "algorithms":
        from lockstep.config import ALGORITHMS

        for name, cls in ALGORITHMS.items():
            print(f"{name:<11} {(cls.__doc__ or '').splitlines()[0]}")
    else:
        raise unknown("list", what, ("tasks", "algorithms"), "lockstep list --help")


@app.command()
def version() -> None:
    """Print the version."""
    print(VERSION)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def root(
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Hold the options that stand before a command."""


def _check_words(argv: Sequence[str]) -> None:
    """Refuse an unknown command and an option that is given twice."""
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS, "lockstep --help")
    seen: set[str] = set()
    for word in argv:
        if word == "--":
            return
        if not word.startswith("--"):
            continue
        name = word.partition("=")[0].replace("_", "-")
        if name in seen:
            raise UsageError(f"the option {name} is given twice: give it once")
        seen.add(name)


def _sentence(error: Any, argv: Sequence[str]) -> str:
    """One sentence for what the option parser refused."""
    name = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if name is not None and context is not None:
        names = [opt for param in context.command.params for opt in param.opts if opt[0] == "-"]
        command = " ".join(["lockstep", *([argv[0]] if argv[0] in COMMANDS else []), "--help"])
        return str(unknown("option", name, [*names, "--help"], command))
    text = " ".join(error.format_message().split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _leave(code: int, sentence: str) -> NoReturn:
    print(f"lockstep: {sentence}", file=sys.stderr)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        _check_words(words)
        code = app(words, standalone_mode=False, prog_name="lockstep")
    except UsageError as error:
        _leave(2, str(error))
    except typer.Abort:
        _leave(130, "stopped on request")
    except TrainingFailed as error:
        _leave(1, str(error))
    except StopRequested as error:
        _leave(error.code, str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the option parser refuses has one
            raise
        _leave(2, _sentence(error, words))
    if code == 130:  # the option parser's answer to Ctrl-C
        _leave(130, "stopped on request")
    sys.exit(code if isinstance(code, int) else 0)
