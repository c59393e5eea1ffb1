"""Draw the bytes on disk over the steps of a story, as one SVG file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH, HEIGHT = 960, 480
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 96, 84
FLOOR: Final = HEIGHT - BOTTOM
INK, FAINT, LINE = "#1f2933", "#616e7c", "#e4e7eb"
BAR_SHARE: Final = 0.62  # of the width of a step


class Moment(NamedTuple):
    """The number of bytes of each kind after one step."""

    step: str
    at_s: float  # since the story began
    active: int  # in active segments
    cut: int  # in sealed segments
    archived: int  # in bundles
    compacted: int  # removed by compaction so far
    reclaimed: int  # removed by RECLAIM so far

    @property
    def written(self) -> int:
        """All bytes ever appended; bundles do not count, as they are copies."""
        return self.active + self.cut + self.compacted + self.reclaimed


class BarStyle(NamedTuple):
    """How one kind of bytes is drawn: solid if on disk, outlined if removed."""

    name: str
    about: str
    paint: str


KINDS: Final = (
    BarStyle("active", "in active segments", 'fill="#1f4e79"'),
    BarStyle("cut", "in cut segments", 'fill="#6fa3cc"'),
    BarStyle("archived", "in archive bundles", 'fill="#d98e04"'),
    BarStyle(
        "compacted", "compacted away", 'fill="#f5f7fa" stroke="#9aa5b1" stroke-dasharray="4 3"'
    ),
    BarStyle("reclaimed", "reclaimed", 'fill="#e3f1e5" stroke="#7ba883" stroke-dasharray="4 3"'),
)


def draw(title: str, moments: Sequence[Moment]) -> str:
    """Draw one stacked bar per step: bytes on disk, and above them removed bytes in outline."""
    top = _round_up(max([1, *(m.written + m.archived for m in moments)]))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(moments))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="34" font-size="20" font-weight="600">{escape(title)}</text>',
        *_legend(),
        *_scale(top),
    ]
    for number, moment in enumerate(moments):
        parts += _stack(LEFT + number * step, step, moment, top)
    return "\n".join([*parts, "</svg>", ""])


def show_bytes(count: float) -> str:
    """Format a number of bytes for a label."""
    if count >= 1e6:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} B"


def _round_up(count: int) -> int:
    """Round up to the end of a scale whose quarters are round numbers."""
    unit = 10 ** int(math.log10(count))
    return next(int(unit * f) for f in (1, 2, 4, 6, 8, 10) if unit * f >= count)


def _stack(x: float, step: float, moment: Moment, top: int) -> Iterator[str]:
    base, middle = float(FLOOR), x + step / 2
    for kind in KINDS:
        count = getattr(moment, kind.name)
        height = count / top * (FLOOR - TOP)
        base -= height
        if count:
            yield (
                f'<rect x="{middle - step * BAR_SHARE / 2:.1f}" y="{base:.1f}" '
                f'width="{step * BAR_SHARE:.1f}" height="{height:.1f}" {kind.paint}>'
                f"<title>{escape(moment.step)}: {count:,} bytes {kind.about}</title></rect>"
            )
    on_disk = moment.active + moment.cut + moment.archived
    label_y = FLOOR - on_disk / top * (FLOOR - TOP) - 6
    yield _text(middle, label_y, show_bytes(on_disk), 'font-weight="600"')
    for row, word in enumerate([*moment.step.split(maxsplit=1), f"{moment.at_s:.0f} s"]):
        yield _text(middle, FLOOR + 20 + 15 * row, word, f'fill="{INK if row == 0 else FAINT}"')


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {style}>{escape(text)}</text>'


def _scale(top: int) -> Iterator[str]:
    for quarter in range(5):
        y = FLOOR - quarter / 4 * (FLOOR - TOP)
        colour = FAINT if quarter == 0 else LINE
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{colour}"/>'
        yield (
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" fill="{FAINT}">'
            f"{show_bytes(top * quarter / 4) if quarter else 0}</text>"
        )


def _legend() -> Iterator[str]:
    x = LEFT
    for kind in KINDS:
        yield f'<rect x="{x + 0.5}" y="52.5" width="12" height="12" {kind.paint}/>'
        yield f'<text x="{x + 20}" y="63" fill="{FAINT}">{kind.about}</text>'
        x += 40 + 7 * len(kind.about)
