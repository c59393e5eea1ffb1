"""Draw ``docs/overview.svg``: producers, the log with its segments, Spark behind it.

Run it after a change, ``python scripts/overview.py``; a test compares the committed file.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

OUTPUT: Final = Path(__file__).resolve().parent.parent / "docs" / "overview.svg"
WIDTH, HEIGHT = 960, 372
INK, FAINT, LINE, BOX = "#1f2933", "#52606d", "#9aa5b1", "#f5f7fa"
ACTIVE, SEALED, GONE = "#1f4e79", "#6fa3cc", "none"
TOPICS: Final = (  # name, reclaimed, sealed and active segments
    ("orders", 1, 4, 1),
    ("users", 0, 3, 1),
    ("dead_letter", 2, 2, 1),
)
IN: Final = (
    ("Kafka clients", "kcat, librdkafka, Java, Python", 62),
    ("Lines", "echo 'orders.new|0|1|hello' | nc", 164),
    ("Your tests", "the fixture cordwood_broker", 266),
)
JOBS: Final = (
    ("ROUTE", "to topics, exactly once"),
    ("COMPACT", "the newest record per key"),
    ("ARCHIVE", "verified, restorable bundles"),
    ("SQL, audit, replay", "on a laptop or a cluster"),
    ("Your jobs", 'format("cordwood")'),
)


def draw() -> str:
    """Return the whole picture."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
        ),
        "<title>Kafka clients and lines in front, a durable log, Spark behind</title>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{FAINT}"/></marker>'
            "</defs>"
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        *_heads(),
        *_front(),
        *_log(),
        *_spark(),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _heads() -> Iterator[str]:
    for x, text in ((24, "in front"), (316, "the log: one process, plain files"), (718, "behind")):
        yield _text(x, 34, text, f'fill="{FAINT}" font-size="14"')


def _front() -> Iterator[str]:
    for name, about, y in IN:
        yield _box(24, y, 228, 70)
        yield _text(40, y + 29, name, 'font-size="15" font-weight="600"')
        yield _text(40, y + 51, about, f'fill="{FAINT}"')
        yield _arrow(f"M252 {y + 35}H310")


def _log() -> Iterator[str]:
    yield _box(316, 52, 330, 294)
    yield _text(336, 82, "cordwood broker", 'font-size="15" font-weight="600"')
    yield _text(336, 102, "acknowledges after fsync", f'fill="{FAINT}"')
    for row, (name, *counts) in enumerate(TOPICS):
        yield from _topic(name, counts, 122 + row * 58)
    x = 336.0
    kinds = ((ACTIVE, "active"), (SEALED, "sealed"), (GONE, "reclaimed"))
    for paint, about in kinds:
        yield _segment(x, 308, 14, 14, paint)
        yield _text(x + 20, 320, about, f'fill="{FAINT}" font-size="12"')
        x += 44 + 6.4 * len(about)


def _topic(name: str, counts: list[int], y: int) -> Iterator[str]:
    yield _text(336, y + 12, name, "")
    kinds = zip((GONE, SEALED, ACTIVE), counts, strict=True)
    paints = [paint for paint, count in kinds for _ in range(count)]
    for at, paint in enumerate(paints):
        width = 26 if paint == ACTIVE else 42
        yield _segment(336 + at * 48, y + 20, width, 20, paint)


def _spark() -> Iterator[str]:
    yield _box(712, 52, 224, 294)
    yield _text(730, 82, "Spark", 'font-size="15" font-weight="600"')
    for row, (name, about) in enumerate(JOBS):
        yield _text(730, 116 + row * 48, name, 'font-weight="600"')
        yield _text(730, 134 + row * 48, about, f'fill="{FAINT}"')
    yield _arrow("M646 160H706")
    yield _text(679, 150, "files", f'text-anchor="middle" fill="{FAINT}" font-size="12"')
    yield _arrow("M712 250H652")
    yield _text(679, 240, "results", f'text-anchor="middle" fill="{FAINT}" font-size="12"')


def _box(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{BOX}" '
        f'stroke="{LINE}"/>'
    )


def _segment(x: float, y: float, width: float, height: float, paint: str) -> str:
    style = f'fill="{paint}"' + (f' stroke="{LINE}" stroke-dasharray="4 3"' * (paint == GONE))
    return f'<rect x="{x:g}" y="{y}" width="{width}" height="{height}" rx="3" {style}/>'


def _arrow(path: str) -> str:
    return f'<path d="{path}" stroke="{FAINT}" fill="none" marker-end="url(#tip)"/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y}"{" " * bool(style)}{style}>{escape(text)}</text>'


if __name__ == "__main__":
    OUTPUT.write_text(draw())
