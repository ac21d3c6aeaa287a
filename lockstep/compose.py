"""One run's configuration from its layers, typed and checked. Imports no JAX.

From the bottom: the dataclasses of :mod:`lockstep.config`, the algorithm's defaults
(``configs/algo``), the tuned defaults of the task (``configs/tuned/<algorithm>/<task>.yaml``),
the overlay file, and what was asked for (options, ``key=value``, Python keywords). Hydra
composes the groups under ``configs/`` on the dataclasses as a structured configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.config import EnvConfig, RunConfig, algorithm_config
from lockstep.devices import check_environment, expected_devices
from lockstep.errors import UsageError
from lockstep.layers import (
    FREE,
    PER_DEVICE,
    Layer,
    as_tree,
    check_plain,
    check_resumed,
    default_layer,
    flatten,
    keyword_layer,
    overlay_layer,
    request_layer,
    run_keys,
    unknown_key,
)
from lockstep.schema import Key, coerce
from lockstep.sizes import check_sizes, envs_for_devices


@dataclass(frozen=True)
class Composition:
    """A checked configuration, and by dotted path where each value that was set came from."""

    config: RunConfig
    sources: Mapping[str, str]


def compose(
    task: str | None = None,
    algo: str | None = None,
    overrides: Sequence[str] = (),
    config_file: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """The configuration of one run; ``UsageError`` names the first thing that is wrong.

    ``overrides`` are ``key=value`` words, ``options`` the command's own options by key.
    ``base`` is the configuration of a run that is resumed.
    """
    return compose_with_sources(task, algo, overrides, config_file, options, base).config


def compose_with_sources(
    task: str | None = None,
    algo: str | None = None,
    overrides: Sequence[str] = (),
    config_file: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    base: RunConfig | None = None,
) -> Composition:
    """Like :func:`compose`, and tells where each value came from."""
    named = {"task": task, "algo.name": algo}
    given = {path: value for path, value in named.items() if value is not None}
    request = request_layer(overrides, given | dict(options or {}))
    return _compose(request, config_file, base)


def from_kwargs(
    task: str | None = None,
    *,
    config_file: str | Path | None = None,
    base: RunConfig | None = None,
    **keywords: Any,
) -> RunConfig:
    """The configuration from Python keywords, with the same refusals as the command line.

    ``from_kwargs("cartpole", num_envs=512, algo={"learning_rate": 1e-3})``; dotted keys work
    too, as in ``**{"algo.learning_rate": 1e-3}``.
    """
    return keywords_with_sources(task, keywords, config_file, base).config


def keywords_with_sources(
    task: str | None,
    keywords: Mapping[str, Any],
    config_file: str | Path | None = None,
    base: RunConfig | None = None,
) -> Composition:
    """Like :func:`from_kwargs`, and tells where each value came from."""
    request = keyword_layer(keywords)
    if task is not None:
        request.put("task", task, "task")
    return _compose(request, config_file, base)


def to_yaml(cfg: RunConfig) -> str:
    """The complete configuration as YAML; :func:`from_yaml` reads it back unchanged."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(as_tree(cfg)))


def from_yaml(path: str | Path) -> RunConfig:
    """Read what :func:`to_yaml` wrote; unknown keys and wrong types are refused."""
    layer = overlay_layer(path)
    known = run_keys(algorithm_config(layer.values.get("algo.name", "ppo"))().name)
    layer.read_as(known)
    return _build(layer.values, known)


def annotate(text: str, sources: Mapping[str, str]) -> str:
    """YAML of :func:`to_yaml` with a comment on each line whose value has a source."""
    lines, section = [], ""
    for line in text.splitlines():
        name = line.strip().partition(":")[0]
        section = name if not line.startswith((" ", "-")) else section
        path = name if section == name else f"{section}.{name}"
        source = sources.get(path)
        lines.append(f"{line:<34}  # {source}" if source else line)
    return "\n".join(lines)


def _compose(request: Layer, config_file: str | Path | None, base: RunConfig | None) -> Composition:
    check_environment()
    overlay = overlay_layer(config_file) if config_file is not None else Layer("overlay")
    if base is not None:
        algorithm = base.algo.name
        for layer in (overlay, request):  # another algorithm has other keys: told before them
            name = layer.values.get("algo.name", algorithm)
            check_resumed({"algo.name": algorithm}, {"algo.name": name})
    else:
        name = request.values.get("algo.name", overlay.values.get("algo.name", "ppo"))
        algorithm = algorithm_config(name)().name if isinstance(name, str) else "ppo"
    known = run_keys(algorithm)
    for layer in (overlay, request):
        layer.read_as(known)
    task = _task_name(request, overlay, base)
    lower = [_saved_layer(base)] if base is not None else [default_layer(task, algorithm)]
    values, sources = _merge([*lower, overlay, request])
    if base is None:
        values["task"] = task
    _convert_per_device(values, sources)
    cfg = _build(values, known)
    _check_task(cfg)
    check_sizes(cfg, expected_devices().count)
    if cfg.num_blocks is None:
        cfg = replace(cfg, num_blocks=cfg.blocks)
        sources["num_blocks"] = "derived from the sizes"
    if base is not None:
        check_resumed(flatten(as_tree(base)), flatten(as_tree(cfg)))
    return Composition(cfg, sources)


def _task_name(request: Layer, overlay: Layer, base: RunConfig | None) -> str:
    from lockstep.envs import catalog

    own = base.task if base is not None else None
    task = request.values.get("task", overlay.values.get("task", own))
    if task is None:
        raise UsageError("no task was given: lockstep list tasks shows all")
    name = str(catalog.resolve(task).name)
    for layer in (request, overlay):
        if "task" in layer.values:
            layer.values["task"] = name
    return name


def _check_task(cfg: RunConfig) -> None:
    """Refuse what the catalogue knows does not fit the task."""
    from lockstep.envs import catalog

    info = catalog.resolve(cfg.task)
    if cfg.env.backend is not None:
        if not info.backends:
            raise UsageError(
                f"env.backend={cfg.env.backend}: task {info.name!r} has no back-ends to choose from"
            )
        coerce("env.backend", cfg.env.backend, str, info.backends)
    if info.action == "discrete" and cfg.algo.tanh_squash:
        raise UsageError(
            f"algo.tanh_squash=true needs continuous actions, but task {info.name!r} has "
            f"discrete ones"
        )


def _saved_layer(base: RunConfig) -> Layer:
    layer = Layer("")
    layer.values = flatten(as_tree(base))
    return layer


def _merge(layers: list[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Later layers over earlier ones, then ``${...}`` resolved."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        budget = [path for path in ("max_iterations", "total_steps") if path in layer.origins]
        if len(budget) == 2 and None not in [layer.values[path] for path in budget]:
            raise UsageError(
                "max_iterations and total_steps both give the length of the run"
                f"{' in ' + layer.name if layer.name else ''}: give one"
            )
        if budget == ["total_steps"]:  # a length given later replaces one given before
            values["max_iterations"] = None
        if PER_DEVICE in layer.values and "num_envs" in layer.values:
            raise UsageError("num_envs and num_envs_per_device are two ways to say one: give one")
        if "num_envs" in layer.values:
            values.pop(PER_DEVICE, None)
        values |= layer.values
        sources |= layer.origins
    return _resolve(values), sources


def _resolve(values: dict[str, Any]) -> dict[str, Any]:
    if not any("${" in str(value) for value in values.values()):
        return values
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree = OmegaConf.create()
    for path, value in values.items():
        OmegaConf.update(tree, path, value, force_add=True)
    try:
        resolved = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"an interpolation cannot be resolved: {reason}") from None
    assert isinstance(resolved, dict)
    return flatten(resolved)


def _convert_per_device(values: dict[str, Any], sources: dict[str, str]) -> None:
    if PER_DEVICE not in values:
        return
    per_device = coerce(PER_DEVICE, values.pop(PER_DEVICE), int)
    if per_device < 1:
        raise UsageError(f"{PER_DEVICE}={per_device} is out of range: 1 <= {PER_DEVICE} is allowed")
    count = values.get("num_devices") or expected_devices().count
    if values.get("enable_multi_devices") == "false":
        count = 1
    values["num_envs"] = envs_for_devices(per_device, count, values.get("num_blocks"))
    sources["num_envs"] = f"{per_device} per device x {count}"


def _build(values: Mapping[str, Any], known: Mapping[str, Key]) -> RunConfig:
    """The dataclasses from flat values; every value is checked once more after merging."""
    sections: dict[str, dict[str, Any]] = {"": {}, "algo": {}, "env": {}}
    free: dict[str, Any] = dict(values.get(FREE) or {})
    for path, value in values.items():
        if path.startswith(FREE + "."):
            free[path.removeprefix(FREE + ".")] = value
        elif path not in known:
            raise unknown_key(path, known)
        elif path != FREE:
            section, _, name = path.rpartition(".")
            entry = known[path]
            sections[section][name] = coerce(path, value, entry.type, entry.choices)
    check_plain(free)
    algorithm = algorithm_config(sections["algo"].get("name", "ppo"))
    env = EnvConfig(**sections["env"], kwargs=free)
    return RunConfig(**sections[""], env=env, algo=algorithm(**sections["algo"]))
