"""A picture of the log's life: bytes on disk over the steps of a story, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 50, 120
COLOURS = {"live": "#3b6ea5", "archived": "#c98b2b", "freed": "#8aa37b"}


class Moment(NamedTuple):
    """Where the bytes were after one step."""

    step: str
    live: int  # in segments
    archived: int  # in bundles
    freed: int  # compacted or reclaimed away so far


def draw(title: str, moments: Sequence[Moment]) -> str:
    """Stacked bars, one per step, with a legend and a scale."""
    top = max([1, *(m.live + m.archived + m.freed for m in moments)])
    step = (WIDTH - LEFT - RIGHT) / max(1, len(moments))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
        *_scale(top),
        *_legend(),
    ]
    for number, moment in enumerate(moments):
        parts += _bar(LEFT + number * step, step, moment, top)
    return "\n".join([*parts, "</svg>", ""])


def _bar(x: float, step: float, moment: Moment, top: int) -> list[str]:
    parts, base = [], float(HEIGHT - BOTTOM)
    for kind, colour in COLOURS.items():
        height = getattr(moment, kind) / top * (HEIGHT - TOP - BOTTOM)
        base -= height
        parts.append(
            f'<rect x="{x + step * 0.15:.1f}" y="{base:.1f}" width="{step * 0.7:.1f}" '
            f'height="{height:.1f}" fill="{colour}"><title>{escape(moment.step)}: {kind} '
            f"{getattr(moment, kind)} bytes</title></rect>"
        )
    label_x, label_y = x + step / 2, HEIGHT - BOTTOM + 16
    parts.append(
        f'<text x="{label_x:.1f}" y="{label_y}" text-anchor="end" '
        f'transform="rotate(-35 {label_x:.1f} {label_y})">{escape(moment.step)}</text>'
    )
    return parts


def _scale(top: int) -> list[str]:
    parts = []
    for quarter in range(5):
        y = HEIGHT - BOTTOM - quarter / 4 * (HEIGHT - TOP - BOTTOM)
        value = top * quarter / 4 / 1e6
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.2f} MB</text>')
    return parts


def _legend() -> list[str]:
    parts = []
    for number, (kind, colour) in enumerate(COLOURS.items()):
        x = WIDTH - RIGHT - 300 + number * 100
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="24">{kind}</text>')
    return parts
