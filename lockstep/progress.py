"""Progress on standard error: one live line in a terminal, a plain line now and then without.

Nothing is drawn by a thread and the cursor stays visible, so a killed run leaves the
terminal as it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

_ERASE = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
_GAP = "  "


class Progress:
    """The run's line: update, steps, steps/s, return, losses, time left.

    Args:
        total_updates: updates of the whole run.
        total_steps: environment steps of the whole run.
        enabled: ``False`` (other ranks, ``--quiet``) prints nothing at all.
        console: where to print; standard error by default.
        redraw_seconds: least time between two drawings of the live line.
        line_seconds: without a terminal, the time between plain lines (in a long run one
            hundredth of the time gone); a line also comes at every tenth of the updates.
    """

    def __init__(
        self,
        total_updates: int,
        total_steps: int,
        enabled: bool = True,
        console: Console | None = None,
        redraw_seconds: float = 0.1,
        line_seconds: float = 5.0,
    ) -> None:
        self.total_updates = total_updates
        self.total_steps = total_steps
        self.enabled = enabled
        self._console = console or Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._redraw_seconds = redraw_seconds
        self._line_seconds = line_seconds
        self._started = time.monotonic()
        self._last_drawn = -math.inf
        self._last_tenth = -1
        self._line = ""
        self._drawn = ""

    def header(self, lines: Iterable[str]) -> None:
        """Print the run's heading, a line each."""
        for line in lines:
            self.message(line)

    def update(
        self,
        metrics: Mapping[str, float | int | str | None],
        steps: int,
        steps_per_second: float | None,
        time_left: float | None,
    ) -> None:
        """Show one update.

        Args:
            metrics: ``update`` is its number; ``return`` or ``return_mean`` the episodes'
                return (missing or ``None``: ``-``); names that end in ``loss`` are losses.
            steps: environment steps so far.
            steps_per_second: None if not known yet.
            time_left: seconds, None if not known yet.
        """
        if not self.enabled:
            return
        number = int(metrics.get("update") or 0)
        width = max(20, self._console.width - 1) if self._live else 100
        self._line = status_line(
            metrics, number, self.total_updates, steps, steps_per_second, time_left, width
        )
        now = time.monotonic()
        last = number >= self.total_updates
        if self._live:
            if last or now - self._last_drawn >= self._redraw_seconds:
                self._draw(now)
            return
        tenth = 10 * number // max(1, self.total_updates)
        pause = max(self._line_seconds, (now - self._started) / 100)
        if last or tenth > self._last_tenth or now - self._last_drawn >= pause:
            self._last_tenth, self._last_drawn = tenth, now
            self._print(self._line)

    def message(self, text: str) -> None:
        """Print a line of its own above the live one."""
        if not self.enabled:
            return
        self._erase()
        self._print(text)
        if self._live and self._line:
            self._draw(time.monotonic())

    def close(self) -> None:
        """End the live line; what is printed next starts on a new one."""
        if self.enabled and self._live and self._line:
            self._erase()
            self._print(self._line)
        self._line = self._drawn = ""

    def _draw(self, now: float) -> None:
        self._erase()
        self._print(self._line, style="bold", end="")
        self._drawn, self._last_drawn = self._line, now

    def _erase(self) -> None:
        if self._drawn:
            self._console.control(_ERASE)
            self._drawn = ""

    def _print(self, text: str, style: str = "", end: str = "\n") -> None:
        """Print; once nobody reads any more (rich would leave the process) print nothing."""
        try:
            self._console.print(Text(text, style=style), end=end, soft_wrap=True)
            self._console.file.flush()
        except (OSError, SystemExit):
            self.enabled = False


def status_line(
    metrics: Mapping[str, float | int | str | None],
    update: int,
    total_updates: int,
    steps: int,
    steps_per_second: float | None,
    time_left: float | None,
    width: int,
) -> str:
    """The line of one update, at most ``width`` columns: losses go first, then from the right."""
    episode_return = metrics.get("return", metrics.get("return_mean"))
    if isinstance(episode_return, float) and math.isnan(episode_return):
        episode_return = None
    front = [
        f"update {update}/{total_updates}",
        f"{_count(steps)} steps",
        f"{_count(steps_per_second)}/s",
        f"return {_number(episode_return)}",
    ]
    back = [f"left {_clock(time_left)}"]
    losses = {name: value for name, value in metrics.items() if name.endswith("loss")}
    for shown, gap in (
        (_named_losses(losses), _GAP),
        (_short_losses(losses), _GAP),
        (_short_losses(losses), " "),
        ([], _GAP),
    ):
        line = gap.join([*front, *shown, *back])
        if len(line) <= width:
            return line
    return line[:width].rstrip()


def _named_losses(losses: Mapping[str, float | int | str | None]) -> list[str]:
    """``policy -0.012`` and so on."""
    names = {name: name.removesuffix("loss").rstrip("_/. ") or "loss" for name in losses}
    return [f"{names[name]} {_number(value)}" for name, value in losses.items()]


def _short_losses(losses: Mapping[str, float | int | str | None]) -> list[str]:
    """All in one word, in the order given: ``loss -0.012/0.34``."""
    return ["loss " + "/".join(_number(value) for value in losses.values())] if losses else []


def _number(value: float | int | str | None) -> str:
    """Three or four digits; ``-`` where there is no value."""
    if value is None:
        return "-"
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if number == 0 or 0.001 <= abs(number) < 10_000:
        decimals = 1 if abs(number) >= 100 else 2 if abs(number) >= 1 else 3
        return f"{number:.{decimals}f}"
    return f"{number:.1e}"


def _count(value: float | int | None) -> str:
    """A count in three digits and a letter: ``950``, ``28.9k``, ``1.23M``, ``4.56G``."""
    if value is None or not math.isfinite(value):
        return "-"
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            scaled = value / scale
            decimals = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
            return f"{scaled:.{decimals}f}{letter}"
    return f"{value:.0f}"


def _clock(seconds: float | None) -> str:
    """Seconds as ``0:07``, ``12:34`` or ``1:02:33``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(max(0, math.ceil(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
