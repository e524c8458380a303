"""Faults under load, one after the other: four ranks that sum without end, one fault, and what every rank says of it.

One row for each fault: the verdict on every rank, the seconds it took, and what kept working. The rows are written as
JSON to E2E_FAULTS, by default `target/roce-faults.json`; E2E_FAULT names a few cases, separated by commas, to run alone.
"""

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from server import BINARY, ROOT, TARGET

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import Lab  # noqa: E402
from lab_roce_cluster import cluster_file  # noqa: E402

STEADY = BINARY.resolve().parent / "examples" / "steady"
SCRIPTS = ROOT / "crates" / "cluster" / "tests" / "golden"
TOKEN = "a shared secret for these drills only"
# Emulated machines on a busy one: generous to start, strict about the verdict after that.
FORM_LIMIT_S = 120.0
SETTLE_S = 3.0
# A verdict has to come within the longest patience for a wire, and time for four emulated machines to tell it.
PATIENCE = {"patience.wire": "3s", "patience.relay": "3s", "patience.silent": "6s", "patience.compute": "6s",
            "patience.start": "60s"}
VERDICT_LIMIT_S = 20.0
SCHEMA = "railweave-fault-table/1"


class Case:
    """One fault. `verdict`: what every living rank's verdict has to say, a pattern; none where there must be none.
    `may` instead: a verdict of this kind may come or not. `heals`: sums go on after the fault is mended, or without."""

    def __init__(self, name, inject=None, mend=None, verdict=None, may=None, dead=(), watch=12.0, heals=True, before=None,
                 start=None, forward="off", failed=None, bed="one", prefix=None, relayed=None):
        self.name, self.inject, self.mend, self.verdict, self.may = name, inject, mend, verdict, may
        self.dead, self.watch, self.heals, self.before, self.start = dead, watch, heals, before, start
        self.forward, self.failed, self.bed, self.prefix, self.relayed = forward, failed, bed, prefix, relayed


def shell(lab, host, text):
    done = lab.run(host, "sh", "-c", text, directory="/")
    if done.returncode:
        raise RuntimeError(f"{text}: {(done.stderr or done.stdout).strip()}")


def wire(*netem):
    return lambda lab: lab.wire("h0-h1", *netem)


PATH_01 = r"path between rank (0|1) and rank (0|1) is broken"
CASES = [
    Case("loss of 1 %", wire("loss", "1%"), may=PATH_01),
    Case("loss of 10 %", wire("loss", "10%"), may=PATH_01, watch=20.0),
    Case("cable cut", lambda lab: lab.pull("h0-h1"), verdict=PATH_01),
    Case("cable cut, and restored", lambda lab: lab.pull("h0-h1"), mend=lambda lab: lab.mend("h0-h1"), may=PATH_01,
         watch=6.0),
    Case("delay of 100 ms", wire("delay", "100ms"), may=PATH_01),
    Case("packets in another order", wire("delay", "2ms", "reorder", "25%", "50%"), may=PATH_01),
    Case("packets twice", wire("duplicate", "20%"), may=PATH_01),
    Case("packets corrupted", wire("corrupt", "5%"), may=PATH_01, watch=20.0),
    Case("MTU lowered at one end", lambda lab: shell(lab, "h0", "ip link set h0p0f0 mtu 1500"),
         mend=lambda lab: shell(lab, "h0", "ip link set h0p0f0 mtu 9000"), may=PATH_01),
    Case("GID table changed", lambda lab: shell(lab, "h0", "ip address del 10.10.0.1/24 dev h0p0f0; sleep 1; "
                                                "ip address add 10.10.0.1/24 dev h0p0f0"), may=PATH_01),
    Case("wrong GID by hand", start=lambda text: text.replace('"10.10.0.1/24"', '"10.10.0.77/24"'),
         failed=r"10\.10\.0\.77"),
    Case("memlock of 64 KiB", failed=r"(?i)memlock|locked memory",
         prefix={"h2": ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536"]}),
    Case("far host killed", lambda lab: lab.kill("h2"), mend=lambda lab: lab.boot("h2"), dead=("h2",), heals=False,
         verdict=r"rank 2 .*(died|silent)|rank 2 on h2"),
    Case("middle host killed", lambda lab: lab.kill("h1"), mend=lambda lab: lab.boot("h1"), dead=("h1",), heals=False,
         verdict=r"rank 1 .*(died|silent)|rank 1 on h1"),
    Case("far host frozen", lambda lab: lab.freeze("h2"), mend=lambda lab: lab.thaw("h2"), dead=("h2",),
         verdict=r"rank 2 .*silent|rank 2 on h2", heals=False),
    Case("rule deleted", lambda lab: shell(lab, "h1", "tc filter del dev h1p1f0 ingress"), forward="auto",
         may=r"path between rank (0|2) and rank (0|2)"),
    Case("return rule deleted", lambda lab: shell(lab, "h1", "tc filter del dev h1p0f0 ingress"), forward="auto",
         may=r"path between rank (0|2) and rank (0|2)"),
    Case("marker missing on one device", before=lambda lab: shell(lab, "h0", "tc filter del dev h0p0f0 egress"),
         forward="auto", relayed=(0, 2)),
    Case("far host killed, own machine", lambda lab: lab.kill("h2"), mend=lambda lab: lab.boot("h2"), dead=("h2",),
         heals=False, verdict=r"rank 2 .*(died|silent)|rank 2 on h2", bed="many"),
    Case("far host frozen, own machine", lambda lab: lab.freeze("h2"), mend=lambda lab: lab.thaw("h2"), dead=("h2",),
         heals=False, verdict=r"rank 2 .*silent|rank 2 on h2", bed="many"),
    Case("cable cut, own machines", lambda lab: lab.pull("h0-h1"), verdict=PATH_01, bed="many"),
]


class Group:
    """Four ranks, and all they print with the time it was seen."""

    def __init__(self, lab, file, seconds, case):
        self.lab, self.events, self.offsets, self.rests = lab, [], {}, {}
        words = [f"{key}={value}" for key, value in PATIENCE.items()]
        self.jobs = {}
        for host in lab.hosts:
            prefix = (case.prefix or {}).get(host, [])
            self.jobs[host] = lab.start(host, *prefix, STEADY, file, host, TOKEN, str(seconds), *words, "pause_ms=20",
                                        "bytes=16384", limit=seconds + 60, directory="/")
        self.offsets = dict.fromkeys(lab.hosts, 0)
        self.rests = dict.fromkeys(lab.hosts, b"")

    def look(self):
        now = time.monotonic()
        for host, job in self.jobs.items():
            new = job.output("stdout", self.offsets[host])
            self.offsets[host] += len(new)
            *lines, self.rests[host] = (self.rests[host] + new).split(b"\n")
            for line in lines:
                try:
                    self.events.append((host, now, json.loads(line)))
                except ValueError:
                    self.events.append((host, now, {"event": "said", "text": line.decode(errors="replace")}))

    def of(self, event, since=0.0, host=None):
        return [(who, at, what) for who, at, what in self.events
                if what["event"] == event and at >= since and host in (None, who)]

    def wait(self, condition, limit):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            self.look()
            if condition():
                return True
            time.sleep(0.1)
        return False

    def errors(self):
        return {host: text for host, job in self.jobs.items()
                if (text := job.output("stderr").decode(errors="replace").strip()[-400:])}

    def end(self):
        for job in self.jobs.values():
            if job.poll() is None:
                job.end(kill=True)
        for job in self.jobs.values():
            job.wait(20)


def rules(lab, tag="destination"):
    """The rules of a ring, where all hosts are one machine: the scripts that `railweave apply` makes for each of them.
    It cannot make them here itself, since each host would take the others' rules for its own."""
    for host in lab.hosts:
        shell(lab, host, f"sh {SCRIPTS}/apply-tc-{tag}-{host}.sh")


def no_rules(lab):
    shell(lab, "h0", "ip route flush proto 157; for n in $(awk '{ print $2 }' $ROCE_TABLE); do "
          "tc qdisc del dev $n clsact 2> /dev/null; ip neigh flush nud permanent dev $n; done; true")


def rate(events, host, start, end):
    """Sums a second of one rank between two times; none if it did not tell."""
    told = [(at, what["steps"]) for who, at, what in events
            if who == host and what["event"] == "steps" and start <= at <= end]
    if len(told) < 2 or told[-1][0] == told[0][0]:
        return None
    return round((told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0]), 1)


def run_case(lab, case, folder, checks):
    file = Path(folder) / f"{re.sub(r'[^a-z0-9]+', '-', case.name.lower())}.toml"
    text = cluster_file(lab, forward=case.forward, reach="local")
    file.write_text(case.start(text) if case.start else text)
    row = {"fault": case.name, "bed": lab.bed, "forward": case.forward}
    if case.forward != "off":
        rules(lab)
    if case.before:
        case.before(lab)
    group = Group(lab, str(file), FORM_LIMIT_S + 2 * case.watch + VERDICT_LIMIT_S + 60, case)
    try:
        observe(lab, case, group, row)
    finally:
        group.end()
        lab.mend_all()
        if case.forward != "off":
            no_rules(lab)
    checks.check(f"{case.name} ({lab.bed})", row["ok"], row["told"])
    return row


def observe(lab, case, group, row):
    living = [host for host in lab.hosts if host not in case.dead]
    began = time.monotonic()
    if case.failed:
        def named():
            said = {who: json.dumps(what) for who, _, what in group.events} | group.errors()
            return {who: text for who, text in said.items() if re.search(case.failed, text)}

        ended = group.wait(named, FORM_LIMIT_S)
        said = {who: text[-300:] for who, text in named().items()}
        row.update(ok=ended, seconds=round(time.monotonic() - began, 1), verdicts=said, kept="does not start",
                   told=said or group.errors() or "nothing of it was said")
        return
    steady = group.wait(lambda: {who for who, _, _ in group.of("steps")} == set(lab.hosts), FORM_LIMIT_S)
    if not steady:
        said = {who: what for who, _, what in group.events[-8:]}
        row.update(ok=False, told=f"the group did not begin: {said} {group.errors()}")
        return
    group.wait(lambda: False, SETTLE_S)
    relayed = {who: what["relayed_to"] for who, _, what in group.of("rails")}
    if case.relayed:
        ok = case.relayed[1] in relayed.get(f"h{case.relayed[0]}", [])
        row.update(ok=ok, seconds=0.0, verdicts={}, told=f"relayed instead: {relayed}", relayed=relayed,
                   kept=f"{rate(group.events, 'h0', began, time.monotonic())} sums/s")
        return
    usual = rate(group.events, living[0], began, time.monotonic())
    injected = time.monotonic()
    case.inject(lab)
    pattern = case.verdict or case.may

    def all_told():
        return {who for who, _, _ in group.of("verdict", injected)} >= set(living)

    group.wait(all_told, max(case.watch, VERDICT_LIMIT_S if case.verdict else 0.0))
    verdicts = {}
    for who, at, what in group.of("verdict", injected):
        verdicts.setdefault(who, (round(at - injected, 1), what["text"]))
    during = rate(group.events, living[0], injected, time.monotonic())
    mended = time.monotonic()
    if case.mend:
        case.mend(lab)
    elif not case.verdict:
        lab.mend_all()
    goes_on = None
    if case.heals:
        goes_on = group.wait(lambda: {who for who, _, _ in group.of("steps", mended + 1)} >= set(living), 60.0)
    texts = {text for _, text in verdicts.values()}
    # The same verdict on all ranks, of the right kind; a rank that is dead says nothing.
    right = all(re.search(pattern, text) for text in texts) if pattern else not texts
    complete = set(verdicts) >= set(living)
    ok = right and len(texts) <= 1 and (complete if case.verdict else complete or not verdicts) and goes_on is not False
    wrong = group.of("wrong")
    row.update(
        ok=bool(ok and not wrong), seconds=max((at for at, _ in verdicts.values()), default=None),
        verdicts={who: {"seconds": at, "text": text} for who, (at, text) in sorted(verdicts.items())},
        usual_sums_per_s=usual, during_sums_per_s=during, goes_on=goes_on, wrong_sums=len(wrong),
        rails_at_end={who: what for who, _, what in group.of("rails")}, errors=group.errors(),
        kept="sums went on" if not verdicts else "sums went on after the group formed again" if goes_on else "not waited for")
    row["told"] = (f"{'; '.join(sorted(texts)) or 'no verdict'} after {row['seconds']} s on {len(verdicts)} ranks; "
                   f"sums/s {usual} before, {during} during; {row['kept']}")


def faults(name, checks):
    """Every case, bed after bed, and the table."""
    wanted = [one for one in os.environ.get("E2E_FAULT", "").split(",") if one]
    rows = []
    try:
        for bed in ("one", "many"):
            cases = [case for case in CASES if case.bed == bed and (not wanted or case.name in wanted)]
            if cases:
                on_bed(name, bed, cases, rows, checks)
    finally:
        write(rows)


def on_bed(name, bed, cases, rows, checks):
    with Lab(name, "ring4", bed) as lab, tempfile.TemporaryDirectory(prefix="railweave-faults-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        for case in cases:
            began = time.monotonic()
            try:
                rows.append(run_case(lab, case, folder, checks))
            except Exception as error:  # the next fault is tried all the same
                rows.append({"fault": case.name, "bed": bed, "ok": False, "told": f"{type(error).__name__}: {error}"})
                checks.check(f"{case.name} ({bed})", False, rows[-1]["told"])
            rows[-1]["took_s"] = round(time.monotonic() - began, 1)
            if not rows[-1]["ok"] and case is not cases[-1]:
                # What is left of it would spoil the next one.
                lab.up()


def write(rows):
    target = Path(os.environ.get("E2E_FAULTS", TARGET / "roce-faults.json"))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"schema": SCHEMA, "rows": rows}, indent=1) + "\n")
    print("\n| fault | bed | verdict on every rank | seconds | what kept working |\n|---|---|---|---|---|")
    for row in rows:
        verdicts = {one["text"] if isinstance(one, dict) else str(one) for one in (row.get("verdicts") or {}).values()}
        seconds = row.get("seconds")
        print(f"| {row['fault']} | {row['bed']} | {'; '.join(sorted(verdicts)) or 'none'} | "
              f"{'not measured' if seconds is None else seconds} | {row.get('kept', row['told'])} |")
    print(f"wrote {target}")
