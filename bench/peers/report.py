"""Rows of all rounds in; a page of results and a table for machines out.

Usage: report.py RAW.csv NOTES.txt OUT KEY=VALUE...
RAW has round,label,ranks,bytes,calls,min_us,p50_us,p99_us,others_percent; OUT gets .md and .csv.
"""

import collections
import os
import pathlib
import platform
import statistics
import sys

SHM, PLAIN, TCP = (f"railweave-{name}" for name in
                   ("shm-full-registered", "shm-full-plain", "tcp-full-registered"))
RING = "railweave-shm-ring-registered"
MPIS = ("openmpi-shm", "mpich-shm")
KIB, MIB = 1 << 10, 1 << 20

# What is compared: own label, ranks, bytes, the peers of which the fastest counts, the goal.
GOALS = [
    *[(SHM, 2, size, MPIS, 0.9) for size in (8, 4 * KIB, 48 * KIB, 1536 * KIB)],
    (SHM, 2, 64 * MIB, MPIS, 0.6),
    (SHM, 4, 8, ("openmpi-shm",), 1.1),
    *[(SHM, 4, size, ("openmpi-shm",), 0.7) for size in (4 * KIB, 48 * KIB, 1536 * KIB)],
    *[(TCP, 2, size, ("openmpi-tcp",), 1.0) for size in (48 * KIB, 1536 * KIB)],
    *[(TCP, 2, size, ("gloo",), 0.1) for size in (8, 48 * KIB)],
    (TCP, 2, 64 * MIB, ("gloo",), 1.0),
    (RING, 4, 48 * KIB, (SHM,), 2.0),
]


def show_bytes(size):
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if size >= factor and size % (factor // 2) == 0:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def show_us(value):
    return "not measured" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def read(path):
    rows = collections.defaultdict(list)
    for line in path.read_text().splitlines():
        turn, label, ranks, size, calls, least, p50, p99, others = line.split(",")
        rows[label, int(ranks), int(size)].append(
            (int(turn), int(calls), float(least), float(p50), float(p99), int(others)))
    return rows


def summary(rows):
    """The median of the rounds' medians, and what else is worth knowing of a point."""
    return {
        key: {
            "rounds": len(found),
            "calls": sum(row[1] for row in found),
            "min_us": min(row[2] for row in found),
            "p50_us": statistics.median(row[3] for row in found),
            "p99_us": statistics.median(row[4] for row in found),
            "others": statistics.median(row[5] for row in found),
        }
        for key, found in rows.items()
    }


def reasons(path):
    """Why goals are missed: lines of `label | ranks | bytes | reason`, kept by hand."""
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                label, ranks, size, why = (part.strip() for part in line.split("|", 3))
                found[label, int(ranks), int(size)] = why
    return found


def goals(points, why):
    lines = ["| | size | measured | peer | peer's | ratio | goal | |", "|---|---|---|---|---|---|---|---|"]
    missed = []
    for label, ranks, size, peers, goal in GOALS:
        mine = points.get((label, ranks, size))
        others = [(points[peer, ranks, size]["p50_us"], peer) for peer in peers
                  if (peer, ranks, size) in points]
        name = f"{label}, {ranks} ranks"
        if not mine or not others:
            lines.append(f"| {name} | {show_bytes(size)} | {show_us(mine and mine['p50_us'])} "
                         f"| {' or '.join(peers)} | not measured | not measured | ≤ {goal} | |")
            continue
        best, peer = min(others)
        ratio = mine["p50_us"] / best
        word = "reached" if ratio <= goal else "**missed**"
        if ratio > goal:
            reason = why.get((label, ranks, size), "not explained yet")
            missed.append(f"- {name}, {show_bytes(size)} ({ratio:.2f} instead of {goal}): {reason}")
        lines.append(f"| {name} | {show_bytes(size)} | {show_us(mine['p50_us'])} | {peer} "
                     f"| {show_us(best)} | {ratio:.2f} | ≤ {goal} | {word} |")
    return lines, missed


def tables(points):
    lines = []
    for ranks in sorted({key[1] for key in points}):
        sizes = sorted({key[2] for key in points if key[1] == ranks})
        labels = list(dict.fromkeys(key[0] for key in points if key[1] == ranks))
        lines += ["", f"### {ranks} ranks", "",
                  "| | " + " | ".join(map(show_bytes, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
        for label in labels:
            of = [points.get((label, ranks, size)) for size in sizes]
            busy = statistics.median(point["others"] for point in of if point)
            cells = " | ".join(show_us(point and point["p50_us"]) for point in of)
            lines.append(f"| {label} [{busy:.0f} %] | {cells} |")
    return lines


def machine():
    model = "processor not known"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}"


def main():
    raw, notes, out = (pathlib.Path(argument) for argument in sys.argv[1:4])
    facts = dict(argument.split("=", 1) for argument in sys.argv[4:])
    points = summary(read(raw))
    if not points:
        sys.exit("report: no rows at all; see the log")
    table, missed = goals(points, reasons(pathlib.Path(__file__).parent.parent / "misses.txt"))
    noted = [f"- {line}" for line in notes.read_text().splitlines()]
    page = [
        f"# All-reduce, {out.name}",
        "",
        "f32 sum over 127.0.0.1 or shared memory of one machine. Before each call all ranks meet at a",
        "barrier; the time of a call is its slowest rank's; everybody checks every sum. The peers take",
        f"turns: {facts['rounds']} rounds of {facts['seconds']} s a size; the numbers are the median of the rounds'",
        "medians, in µs. `bench/run` makes this page.",
        "",
        f"- machine: {machine()}",
        f"- railweave: commit {facts['commit'] or 'not known'}, {facts['rustc']}",
        *[f"- {name}: {facts[key] or 'not measured'}" for name, key in
          (("Open MPI", "openmpi"), ("MPICH", "mpich"), ("gloo", "gloo"))],
        "- ranks are pinned to cores where each can have one, and to none otherwise, for all alike",
        "",
        "## Goals",
        "",
        *table,
        "",
        *(["What was missed, and why:", "", *missed] if missed else ["Every goal was reached."]),
        "",
        "## All medians",
        "",
        "In brackets: the share of the CPU time that other processes took meanwhile. Above 15 % a row",
        "says more about them than about its label.",
        *tables(points),
        "",
        *(["## Notes", "", *noted, ""] if noted else []),
    ]
    out.with_suffix(".md").write_text("\n".join(page))
    lines = ["label,ranks,bytes,rounds,calls,min_us,p50_us,p99_us,others_percent"]
    lines += [
        f"{label},{ranks},{size},{point['rounds']},{point['calls']},{point['min_us']:.3f},"
        f"{point['p50_us']:.3f},{point['p99_us']:.3f},{point['others']:.0f}"
        for (label, ranks, size), point in points.items()
    ]
    out.with_suffix(".csv").write_text("\n".join(lines) + "\n")
    print("\n".join(table + [""] + missed))
    print(f"\nwritten: {out.with_suffix('.md')} and {out.with_suffix('.csv')}")


if __name__ == "__main__":
    main()
