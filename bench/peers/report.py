"""Results as tables: every number with its spread, every peer with the ratio of ours to it."""

from __future__ import annotations

from collections.abc import Iterable

from bench.peers.results import BEFORE, MORE, OURS, TITLES, Result, Results
from bench.peers.targets import EVEN, KAFKA, LINES, TIMES, Verdict, verdicts
from bench.run import aligned, human

DASH = "\N{EN DASH}"
LOST = 1 - EVEN  # below it a comparison counts as a loss


def ours_beside(peer: Result, results: Results) -> Result | None:
    """Return our result for the same workload, case, level and protocol as a peer's."""
    if peer.contestant.startswith(BEFORE):
        ours = (peer.contestant.replace(BEFORE, OURS, 1),)
    else:
        ours = (KAFKA, OURS) if peer.contestant == "Apache Kafka" else (LINES, OURS)
    for label in ours:
        found = results.get((peer.workload, peer.case, label, peer.level))
        if found is not None:
            return found
    return None


def is_ours(result: Result) -> bool:
    return result.contestant.startswith(OURS)


def advantage(peer: Result, results: Results) -> float | None:
    """Return how many times better our result is than the peer's; below 1 we lose."""
    ours = ours_beside(peer, results)
    if is_ours(peer) or ours is None or not peer.median or not ours.median:
        return None
    ratio = ours.median / peer.median
    return ratio if peer.better == MORE else 1 / ratio


def spread(result: Result) -> str:
    """Return the median with the smallest and largest value of the rounds."""
    low, high = min(result.values), max(result.values)
    middle = human(result.median)
    return middle if len(result.values) == 1 else f"{middle} ({human(low)}{DASH}{human(high)})"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{human(ratio)}{TIMES}"


def tables(results: Results) -> str:
    """Return one table for each workload, in the order of TITLES."""
    parts = []
    names = [*TITLES, *sorted({key[0] for key in results} - set(TITLES))]
    for name in names:
        rows = [result for result in results.values() if result.workload == name]
        if rows:
            parts.append(f"### {TITLES.get(name, name)}\n\n{table(rows, results)}\n")
    return "\n".join(parts)


def table(rows: Iterable[Result], results: Results) -> str:
    """Return cases in order; within a case by level, ours first and then the peers."""
    cases = list(dict.fromkeys(row.case for row in rows))
    order = sorted(
        rows,
        key=lambda row: (
            cases.index(row.case),
            row.level != "synced",
            not is_ours(row),
            row.contestant,
        ),
    )
    lines = [["", "durability", "", "median (spread)", "unit", "ours is better by", "note"]]
    last = ""
    for row in order:
        case, last = ("" if row.case == last else row.case), row.case
        better = times(advantage(row, results))
        lines.append([case, row.level, row.contestant, spread(row), row.unit, better, row.note])
    return aligned(lines)


def target_table(results: Results) -> str:
    lines = [["target", "bound", "measured", ""]]
    lines += [target_line(verdict) for verdict in verdicts(results)]
    return aligned(lines)


def target_line(verdict: Verdict) -> list[str]:
    if verdict.value is None:
        return [verdict.target.what, verdict.bound, "", "not measured in this run"]
    shown = f"{human(verdict.value)}{TIMES if verdict.target.other else ''}"
    return [verdict.target.what, verdict.bound, shown, word(verdict)]


def word(verdict: Verdict) -> str:
    if verdict.is_client_bound and not verdict.is_met:
        return "the client's limit"
    if verdict.is_even:
        return "even"
    return "met" if verdict.is_met else "**missed**"


def losses(results: Results) -> list[tuple[float, Result, Result]]:
    """Return every comparison at equal durability in which a peer is ahead, the worst first."""
    found = [
        (ratio, peer, ours)
        for peer in results.values()
        if (ratio := advantage(peer, results)) is not None and ratio < LOST
        if (ours := ours_beside(peer, results)) is not None
    ]
    return sorted(found, key=lambda row: row[0])


def loss_table(results: Results) -> str:
    """Return a table of all losses, without selection."""
    lines = [["workload", "case", "durability", "peer", "peer's", "ours", "unit", "ahead by"]]
    for ratio, peer, ours in losses(results):
        figures = [human(peer.median), human(ours.median), peer.unit, times(1 / ratio)]
        lines.append([peer.workload, peer.case, peer.level, peer.contestant, *figures])
    return aligned(lines)


def settings(contestants: Iterable[dict[str, str]]) -> str:
    """Return a table of the servers and the settings that make their durability equal."""
    lines = [["contestant", "version", "durability", "settings"]]
    lines += [[row["name"], row["version"], row["level"], row["settings"]] for row in contestants]
    return aligned(lines)
