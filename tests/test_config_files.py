"""Configurations as files: complete, read back unchanged, and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.compose import annotate, compose, compose_with_sources, from_yaml, to_yaml
from lockstep.config import RunConfig
from lockstep.errors import UsageError
from lockstep.layers import CONFIGS, RESUMABLE, run_keys
from lockstep.schema import show

LEAVES = sorted(path for path in run_keys("ppo") if path != "env.kwargs")


def test_round_trip(tmp_path: Path) -> None:
    words = [
        "algo.hidden_sizes=[32]",
        "algo.adam_eps=1e-8",
        "env.kwargs.a.b=[1,x]",
        "num_devices=1",
    ]
    for algo in ("ppo", "a2c"):
        cfg = compose("pendulum", algo, [*words, "compile_cache=null", "max_iterations=3"])
        path = tmp_path / "config.yaml"
        path.write_text(to_yaml(cfg))
        assert from_yaml(path) == cfg
        path.write_text(annotate(to_yaml(cfg), {"seed": "somewhere"}))
        assert from_yaml(path) == cfg


def test_a_configuration_file_is_complete(tmp_path: Path) -> None:
    text = to_yaml(RunConfig())
    assert [path for path in LEAVES if f"{path.rpartition('.')[2]}:" not in text] == []
    path = tmp_path / "config.yaml"
    path.write_text(text + "sed: 3\n")
    with pytest.raises(UsageError, match="unknown key 'sed' in config.yaml: did you mean 'seed'?"):
        from_yaml(path)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("tuned/*/*.yaml")), ids=lambda f: f.stem)
def test_every_tuned_file_names_a_task_and_fits(file: Path) -> None:
    found = compose_with_sources(file.stem, file.parent.name)
    assert found.config.task == file.stem
    tuned = f"tuned/{file.parent.name}/{file.name}"
    assert tuned in found.sources.values()


def test_every_key_is_documented_as_it_is() -> None:
    text = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text()
    for key in run_keys("ppo").values():
        row = f"| `{key.path}` | {key.allowed} | `{show(key.default)}` | {key.doc} |"
        assert row in text, f"docs/configuration.md should have the row {row}"
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", text, re.M))
    assert documented == set(run_keys("ppo")) | set(run_keys("a2c"))
    resumable = set(re.findall(r"`(\w+)`", text.partition("given anew:")[2].partition("Any")[0]))
    assert resumable == RESUMABLE
