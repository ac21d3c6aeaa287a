"""The comparison script: interleaving, ratios and the page, with commands that answer at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import compare_ppo  # noqa: E402 (the path is set above)
import report  # noqa: E402
import startup  # noqa: E402

RUNS = {
    ("a", "0"): [{"env_steps_per_second": speed} for speed in (100.0, 120.0, 80.0)],
    ("b", "0"): [{"env_steps_per_second": speed} for speed in (200.0, 180.0, 240.0)],
}


def test_ratio_is_of_medians_with_the_rounds_extremes() -> None:
    ours = compare_ppo.speeds(RUNS, "b", "0")
    assert compare_ppo.ratio(ours, compare_ppo.speeds(RUNS, "a", "0")) == "2.00 (1.50 to 3.00)"


def test_summary_holds_a_row_a_system() -> None:
    lines = compare_ppo.summary(RUNS, ["a", "b"], ["0"])
    assert lines[2] == "| a | 0 | 100 | 80 | 120 | - | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) |"
    assert lines[3].startswith("| b | 0 | 200 | 180 | 240 | - | 2.00 (1.50 to 3.00) |")


def test_systems_alternate_and_see_their_cores() -> None:
    script = (
        "import json, os; print('noise'); print(json.dumps({'env_steps_per_second': 5, "
        "'cores': len(os.sched_getaffinity(0)), 'told': os.environ['LOCKSTEP_CPU_DEVICES'], "
        "'argument': '{devices}', 'flags': os.environ.get('XLA_FLAGS')}))"
    )
    systems = {name: f'{sys.executable} -c "{script}"' for name in ("a", "b")}
    runs = compare_ppo.interleave(systems, ["0"], rounds=2)
    assert [len(found) for found in runs.values()] == [2, 2]
    expected = {"env_steps_per_second": 5, "cores": 1, "told": "1", "argument": "1", "flags": None}
    assert runs["b", "0"][1] == expected
    text = compare_ppo.page(runs, systems, ["0"], load=0.0)
    assert report.cpu_model() in text
    assert text.count("| 5 | 5 | 5 | - |") == 2


def test_a_run_that_fails_is_told_with_its_output() -> None:
    command = f"{sys.executable} -c \"raise SystemExit('no such thing')\""
    with pytest.raises(RuntimeError, match=r"exit code 1 of(.|\n)*no such thing"):
        compare_ppo.run_pinned(command, "0", timeout=30)


def test_unknown_peer_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "peers" / "environments.py"), "rejaxx"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "unknown peer 'rejaxx': one of rejax" in result.stderr


def test_an_answer_that_is_missing_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "command", lambda: [sys.executable, "-c", "print('hello')"])
    assert len(startup.time_request([], "hello", runs=2)) == 2
    with pytest.raises(RuntimeError, match="exit code 0 and no 'Usage'"):
        startup.time_request([], "Usage", runs=1)
