"""The layers a configuration is made of, each as flat ``dotted path -> value``.

A layer is read from the defaults under ``configs/`` (composed by Hydra on the dataclasses),
from an overlay file, from ``key=value`` words with the command's options, or from Python
keywords. Each refuses what it does not know, with the nearest valid name.
Imports no JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.config import ALGORITHMS, RunConfig
from lockstep.errors import UsageError, nearest
from lockstep.schema import Key, coerce, keys, show

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIGS = Path(__file__).parent / "configs"
FREE = "env.kwargs"  # the one free-form place
PER_DEVICE = "num_envs_per_device"  # another way to say num_envs, for requests alone
SECTIONS = ("algo", "env")
OPTION_OF = {"algo.name": "--algo", "task": "TASK"}

# What a resumed run may be given anew: neither the state's shape nor what is learnt from a
# step depends on these. Everything else must equal the run's own configuration.
RESUMABLE = frozenset(
    "num_devices enable_multi_devices max_iterations total_steps eval_episodes eval_interval "
    "checkpoint_interval keep_checkpoints nan_policy tensorboard wandb compile_cache".split()
)


def run_keys(algorithm: str) -> dict[str, Key]:
    """Every leaf key of a run with this algorithm, by its dotted path."""
    plain = {path: entry for path, entry in keys(RunConfig).items() if path[:5] != "algo."}
    return plain | keys(ALGORITHMS[algorithm], "algo.")


@dataclass
class Layer:
    """Values by dotted path, and for each the words that gave it."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, path: str, value: Any, origin: str) -> None:
        """Add a value; another value for the same key in one layer is refused."""
        path = "algo.name" if path == "algo" and isinstance(value, str) else path
        if path in self.values and show(self.values[path]) != show(value):
            both = " and ".join(dict.fromkeys((self.origins[path], origin)))
            raise UsageError(f"two values are given for {path} ({both}): give one")
        self.values[path] = value
        self.origins[path] = origin

    def read_as(self, known: Mapping[str, Key]) -> None:
        """Refuse unknown keys and wrong types; store each value as its key's type."""
        where = f" in {self.name}" if self.name else ""
        for path, value in self.values.items():
            if path == PER_DEVICE or path.startswith(FREE + ".") or _interpolated(value):
                continue
            if path not in known:
                raise unknown_key(path, known, where)
            entry = known[path]
            self.values[path] = coerce(path, value, entry.type, entry.choices)


def _interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def unknown_key(path: str, known: Mapping[str, Key], where: str = "") -> UsageError:
    """The sentence for a key that does not exist; also for one named without its section."""
    if path in SECTIONS:
        return UsageError(f"{path} is a section{where}: give one of its keys, as in {path}.KEY")
    owners = [name for name, cls in ALGORITHMS.items() if path in keys(cls, "algo.")]
    if owners and "algo.name" in known:
        return UsageError(
            f"key {path!r}{where} is one of {', '.join(owners)}, not of the algorithm "
            f"{known['algo.name'].default}"
        )
    if "." in path:
        guess = nearest(path, known)
    else:  # a key of a section, named without the section, counts as that key
        by_leaf = {entry.rpartition(".")[2]: entry for entry in reversed(list(known))}
        guess = by_leaf[nearest(path, by_leaf)]
    return UsageError(
        f"unknown key {path!r}{where}: did you mean {guess!r}? (docs/configuration.md has all)"
    )


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping by dotted path; the values under ``env.kwargs`` stay whole."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        whole = prefix == FREE + "."
        if isinstance(value, Mapping) and not whole and (value or path != FREE):
            flat |= flatten(value, path + ".")
        else:
            flat[path] = value
    return flat


def default_layer(task: str, algorithm: str) -> Layer:
    """What Hydra composes for the algorithm, with the tuned file of the task if there is one."""
    layer = Layer("")
    tuned = CONFIGS / "tuned" / algorithm / f"{task}.yaml"
    groups = [f"algo={algorithm}"]
    if _inside(tuned):
        groups.append(f"+tuned={algorithm}/{task}")
        source = f"tuned/{algorithm}/{task}.yaml"
        layer.origins = dict.fromkeys(_written_keys(tuned), source)
    layer.values = _hydra(groups)
    return layer


def _written_keys(tuned: Path) -> list[str]:
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(OmegaConf.load(tuned))
    return list(flatten(tree)) if isinstance(tree, dict) else []


def _inside(tuned: Path) -> bool:
    """A tuned file that exists; a task named by a path never leads out of the folder."""
    return tuned.resolve().is_relative_to(CONFIGS.resolve()) and tuned.is_file()


def _hydra(overrides: list[str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import MISSING, OmegaConf

    store = ConfigStore.instance()
    run = _open(OmegaConf.structured(RunConfig))
    run.algo = MISSING  # the algorithm's group puts its own dataclass here
    store.store(name="lockstep_run", node=run)
    for name, cls in ALGORITHMS.items():
        store.store(group="algo", name=f"lockstep_{name}", node=_open(OmegaConf.structured(cls)))
    outer = GlobalHydra.instance().hydra  # the caller may be a Hydra application itself
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            tree = OmegaConf.to_container(hydra_compose("config", overrides=overrides))
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)
    assert isinstance(tree, dict)
    return flatten(tree)


def _open(node: DictConfig) -> DictConfig:
    """Let files be merged into the structured form of a frozen dataclass."""
    from omegaconf import DictConfig, OmegaConf

    OmegaConf.set_readonly(node, None)
    for child in node.values():
        if isinstance(child, DictConfig):
            _open(child)
    return node


def overlay_layer(path: str | Path) -> Layer:
    """Read an overlay file: nested or dotted keys, and Hydra's ``defaults`` list.

    The list may name ``_self_``, ``config`` (the base, which stands below the overlay in any
    order) and ``algo: NAME``.
    """
    from omegaconf import OmegaConf

    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no configuration file {str(path)!r}")
    try:
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # the loader's and the parser's own errors
        line = " ".join(str(error).split())
        raise UsageError(f"the configuration file {str(path)!r} cannot be read: {line}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"the configuration file {str(path)!r} is not a mapping of keys")
    layer = Layer(file.name)
    for entry in tree.pop("defaults", None) or ():
        if isinstance(entry, dict) and list(entry) in (["algo"], ["override /algo"]):
            layer.put("algo.name", next(iter(entry.values())), file.name)
        elif entry not in ("_self_", "config"):
            raise UsageError(
                f"unknown entry {entry!r} of the defaults list in {file.name}: "
                f"_self_, config and algo: NAME are allowed"
            )
    for key, value in flatten(tree).items():
        layer.put(key, value, file.name)
    return layer


def request_layer(words: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Layer:
    """Read a command's options (by key) and its ``key=value`` words, as one layer."""
    layer = Layer("")
    for path, value in (options or {}).items():
        value = _number(value) if isinstance(value, str) else value
        layer.put(path, value, OPTION_OF.get(path, "--" + path.replace("_", "-")))
    for word in words:
        path, value = _parse_word(word)
        for key, part in _spread(path, value).items():
            layer.put(key, part, word)
    return layer


def _parse_word(word: str) -> tuple[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    name, equals, text = word.partition("=")
    if not equals:
        raise UsageError(f"{word!r} is not key=value")
    if word[0] in "+~":
        raise UsageError(f"{word!r} adds or deletes a key: write {name.lstrip('+~')}={text}")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"{word!r} cannot be read ({reason}): text with such signs needs its own quotes, as "
            f"in '{name}=\"...\"'"
        ) from None
    if override.package is not None:
        raise UsageError(f"{word!r} names a Hydra package: write {override.key_or_group}={text}")
    if override.is_sweep_override() or override.type != OverrideType.CHANGE:
        raise UsageError(f"{word!r} gives several values: one value or {name}=[...] is allowed")
    return override.key_or_group, override.value()


def _number(text: str) -> int | float | str:
    """The number that an option's text is, or the text itself."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _spread(path: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and path in (*SECTIONS, FREE):
        return flatten(value, path + ".")
    return {path: value}


def keyword_layer(keywords: Mapping[str, Any]) -> Layer:
    """Read Python keywords, such as ``num_envs=512`` and ``algo={"gamma": 0.9}``."""
    layer = Layer("")
    for name, value in keywords.items():
        if is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        for path, part in _spread(name, value).items():
            layer.put(path, part, path)
    return layer


def check_plain(free: Mapping[str, Any]) -> None:
    """Refuse arguments of an environment that ``config.yaml`` could not hold."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for name, value in free.items():
        try:
            OmegaConf.create({name: value})
        except OmegaConfBaseException:
            raise UsageError(
                f"{FREE}.{name} has the type {type(value).__name__}: numbers, text, lists and "
                f"mappings are allowed"
            ) from None


def as_tree(cfg: RunConfig) -> dict[str, Any]:
    """The configuration as nested plain mappings, lists for tuples."""
    tree = asdict(cfg)
    tree["algo"]["hidden_sizes"] = list(cfg.algo.hidden_sizes)
    return tree


def check_resumed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse a change that a resumed run cannot take; flat values of the run and of the request."""
    for path in sorted(after):
        old, new = before.get(path), after[path]
        if old != new and path not in RESUMABLE:
            raise UsageError(
                f"{path}={show(new)} cannot be changed on resume: the run has {path}={show(old)}"
            )
