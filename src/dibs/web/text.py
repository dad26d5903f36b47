"""Texts of pages: numbers, durations, times, and stored text with its invisible characters visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

from dibs.web.reading.source import iso

#: Characters that change the direction of text or have no width, besides those of the category Cf.
_INVISIBLE: Final = frozenset("\u2028\u2029\u115f\u1160\u3164\ufeff")

#: Text for a number that is not known.
UNKNOWN: Final = "\N{EN DASH}"

#: Answer of a write -> its sentence, and True if the write had the wanted effect.
MESSAGES: Final[Mapping[str, tuple[str, bool]]] = {
    "pause": ("The queue is paused: no worker claims its jobs. Running jobs continue.", True),
    "resume": ("Workers claim jobs of the queue again.", True),
    "pause_all": ("All queues are paused: no worker claims their jobs. Running jobs continue.", True),
    "resume_all": ("Workers claim jobs of all queues again.", True),
    "configure": ("The settings of the queue are stored.", True),
    "queued": ("The job is enqueued.", True),
    "updated": ("The waiting job has the new arguments.", True),
    "blocked": ("The id is active, so the new job is blocked until the end of that run.", True),
    "cancelled": ("The job is cancelled.", True),
    "requested": ("The worker is asked to stop the run.", True),
    "active": ("The job is active, so it was left unchanged.", False),
    "not_found": ("There is no such job any more.", False),
    "completed": ("The job has completed, so it was left unchanged.", False),
    "failed": ("The job has failed, so it was left unchanged.", False),
    "retried": ("The failed job is enqueued again.", True),
    "live": ("The id has a job that waits or runs, so it was left unchanged.", False),
    "not_kept": ("The data of the failed job was not kept, so it cannot be enqueued again.", False),
    "was_cancelled": ("The job was cancelled before, so it was left unchanged.", False),
    "amended": ("The job is changed.", True),
    "delivered": ("The signal is sent to the job.", True),
    "no_room": ("The attributes of the job have no room for the signal, so it was not sent.", False),
    "due": ("The job is due now.", True),
    "schedule_paused": ("The schedule is paused. A run that is active goes on.", True),
    "schedule_resumed": ("The schedule goes on at its next time.", True),
    "schedule_removed": ("The schedule is removed. A run that is active goes on.", True),
    "no_schedule": ("There is no such schedule any more.", False),
    "flow_requested": ("A worker cancels the open jobs of the flow.", True),
    "flow_retried": ("The flow runs again. Its completed nodes stay, and the others run again.", True),
    "forgotten": ("The id is removed with its job and its outcome.", True),
}


def visible(text: object) -> Markup:
    """Return escaped text. A character that a reader cannot see is replaced by its escape."""
    parts = []
    for char in str(text):
        if char in "\n\t" or char == " ":
            parts.append(char)
        elif _is_invisible(char):
            parts.append(f'<span class="esc">{char.encode("unicode_escape").decode("ascii")}</span>')
        else:
            parts.append(str(escape(char)))
    return Markup("".join(parts))  # noqa: S704 - each character is escaped above


def one_line(text: object) -> Markup:
    """Return `visible` text, also with the escapes of line breaks and tabs: ids and names stay distinct."""
    marked = str(visible(text))
    for char, name in (("\n", "\\n"), ("\t", "\\t")):
        marked = marked.replace(char, f'<span class="esc">{name}</span>')
    return Markup(marked)  # noqa: S704 - `visible` has escaped it


def with_code(text: object) -> Markup:
    """Return `visible` text in which each part between two backticks is code."""
    parts = str(visible(text)).split("`")
    if len(parts) % 2 == 0:
        return visible(text)
    marked = (f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
    return Markup("".join(marked))  # noqa: S704 - `visible` has escaped it


def plain(text: object) -> str:
    """Return text for a title or an attribute: invisible characters become their escapes."""
    return "".join(
        char.encode("unicode_escape").decode("ascii") if _is_invisible(char) else char for char in str(text)
    )


def _is_invisible(char: str) -> bool:
    return char in _INVISIBLE or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def number(value: float) -> str:
    """Return a whole number with separators, as "12,345"."""
    return f"{int(value):,}"


def rate(value: float | None) -> str:
    """Return a rate per second or minute, as "120/s", "3.4/s" or "12/min"; a dash if it is not known."""
    if value is None:
        return UNKNOWN
    if value <= 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}/s"
    if value >= 1:
        return f"{value:.1f}/s"
    return f"{value * 60:.1f}/min" if value * 60 < 10 else f"{value * 60:.0f}/min"


def duration(ms: float | None) -> str:
    """Return a duration in one or two units, as "35 ms", "2.4 s", "3 min 5 s" or "2 d 4 h"."""
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{int(ms)} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = int(ms // 1000)
    for unit, length, below, step in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // step
            return f"{seconds // length:,} {unit}" + (f" {rest} {below}" if rest else "")
    return "0 s"


def age(ms: int, now: int) -> str:
    """Return a time relative to now, as "3 min ago" or "in 2 h"."""
    away = ms - now
    if abs(away) < 1000:
        return "now"
    text = duration(abs(away) // 1000 * 1000).replace(".0 s", " s")
    return f"in {text}" if away > 0 else f"{text} ago"


def minute(ms: int) -> str:
    """Return a time in ms since the epoch as date and minute in UTC, as "2026-11-20 13:12"."""
    return iso(ms)[:16].replace("T", " ")


def spark_points(values: Sequence[float], width: int = 120, height: int = 28) -> str:
    """Return the points of an SVG line for the values; "" for fewer than two."""
    if len(values) < 2:
        return ""
    # A constant line lies in the middle: at the top it would look like an alarm.
    top = max(values) * (2 if min(values) == max(values) else 1) or 1
    step = width / (len(values) - 1)
    points = (
        f"{index * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for index, value in enumerate(values)
    )
    return " ".join(points)
