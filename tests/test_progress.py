"""The progress line: its content at 80 columns, the live form and the plain form."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from lockstep.progress import Progress, status_line

LOSSES = {"policy_loss": -0.0123, "value_loss": 45.61}


def line(metrics: dict[str, float | int | str | None], width: int = 79) -> str:
    return status_line(metrics, 123, 976, 8_060_928, 289_412.7, 41.2, width)


def test_the_line_by_hand() -> None:
    assert line({"return_mean": 475.04, **LOSSES}) == (
        "update 123/976  8.06M steps  289k/s  return 475.0  loss -0.012/45.61  left 0:42"
    )
    assert line({"return_mean": 475.04, **LOSSES}, width=100) == (
        "update 123/976  8.06M steps  289k/s  return 475.0  policy -0.012  value 45.61  left 0:42"
    )


@pytest.mark.parametrize("missing", [{}, {"return_mean": None}, {"return_mean": math.nan}])
def test_no_return_is_a_dash(missing: dict[str, float | None]) -> None:
    assert line(dict(missing)) == "update 123/976  8.06M steps  289k/s  return -  left 0:42"


def test_a_loss_that_is_nan_is_shown() -> None:
    assert "loss nan" in line({"loss": math.nan})


def test_every_width_is_kept() -> None:
    metrics = {"return_mean": -1234567.8, "actor_loss": 1e-9, "critic_loss": 1e12, "loss": 0.0}
    for width in range(20, 120):
        shown = status_line(metrics, 99_999, 99_999, 10**12, 1e9, 360_000.0, width)
        assert len(shown) <= width
    assert status_line({}, 1, 10, 950, None, None, 79) == (
        "update 1/10  950 steps  -/s  return -  left -"
    )
    assert status_line({}, 1, 10, 1234, 28_940.0, 3753, 79) == (
        "update 1/10  1.23k steps  28.9k/s  return -  left 1:02:33"
    )


def run(console: Console, updates: int, **options: float) -> None:
    progress = Progress(updates, 10 * updates, console=console, **options)
    progress.header(["task: cartpole", "devices: 2"])
    for update in range(1, updates + 1):
        progress.update({"update": update, "return_mean": 1.0 * update}, 10 * update, 5.0, 0.0)
        if update == 2:
            progress.message("evaluation: 3.0")
    progress.close()


def test_plain_lines_at_every_tenth() -> None:
    file = io.StringIO()
    run(Console(file=file, width=80), updates=100)
    text = file.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[:2] == ["task: cartpole", "devices: 2"]
    assert "evaluation: 3.0" in lines
    shown = [int(match) for match in re.findall(r"update (\d+)/100", text)]
    assert shown == [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_live_line_is_redrawn_in_place() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    run(console, updates=30, redraw_seconds=0.0)
    text = file.getvalue()
    assert text.count("update ") == 32  # each once, again after the message, and at the end
    assert "\x1b[?25l" not in text  # the cursor stays
    # What stays on the screen: the text after the last erasure of each row.
    rows = [row.rsplit("\r", 1)[-1] for row in text.replace("\r\n", "\n").split("\n")]
    rows = [re.sub(r"\x1b\[\d*K", "", row) for row in rows]
    assert rows == [
        "task: cartpole",
        "devices: 2",
        "evaluation: 3.0",
        "update 30/30  300 steps  5/s  return 30.00  left 0:00",
        "",
    ]


def test_live_line_is_drawn_at_most_so_often() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    run(console, updates=1000, redraw_seconds=60.0)
    shown = [int(match) for match in re.findall(r"update (\d+)/1000", file.getvalue())]
    assert shown == [1, 2, 1000, 1000]


def test_disabled_prints_nothing() -> None:
    file = io.StringIO()
    progress = Progress(10, 100, enabled=False, console=Console(file=file, force_terminal=True))
    progress.header(["x"])
    progress.update({"update": 1}, 1, 1.0, 1.0)
    progress.message("x")
    progress.close()
    assert file.getvalue() == ""
