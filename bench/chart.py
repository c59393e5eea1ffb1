"""Bar charts as small SVG files: one panel per case, with the spread of the rounds on each bar."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, LABELS, RIGHT = 880, 250, 160
BAR, GAP, TITLE = 16, 6, 34
OURS, THEIRS = "#3b6ea5", "#b9b4a8"


class Bar(NamedTuple):
    """One contestant's number and its spread."""

    label: str
    value: float
    low: float
    high: float
    text: str
    is_ours: bool


class Panel(NamedTuple):
    """One case; its bars share a scale."""

    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        return TITLE + len(self.bars) * (BAR + GAP) + GAP


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the whole chart as SVG."""
    height = 36 + sum(panel.height for panel in panels)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>',
    ]
    top = 36
    for panel in panels:
        parts += _panel(panel, top)
        top += panel.height
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: int) -> list[str]:
    scale = (WIDTH - LABELS - RIGHT) / max(bar.high for bar in panel.bars)
    parts = [f'<text x="12" y="{top + 20}" font-weight="bold">{escape(panel.title)}</text>']
    for number, bar in enumerate(panel.bars):
        parts += _bar(bar, top + TITLE + number * (BAR + GAP), scale)
    return parts


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    middle, end = y + BAR / 2, LABELS + bar.high * scale
    colour, width = OURS if bar.is_ours else THEIRS, bar.value * scale
    return [
        f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>',
        (
            f'<line x1="{LABELS + bar.low * scale:.1f}" x2="{end:.1f}" y1="{middle}" '
            f'y2="{middle}" stroke="#333"/>'
        ),
        f'<text x="{end + 6:.1f}" y="{y + 12}">{escape(bar.text)}</text>',
    ]
