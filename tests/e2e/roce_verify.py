#!/usr/bin/env python3
"""`railweave verify` over real queue pairs: a ring of four, all proven; then a marker, a rule and a return rule gone.

Usage: roce_verify.py RAILWEAVE [LAB]. With LAB, one of bed `one` that is up is used; else one is made.
The rules are those of `railweave apply --script`, for all four hosts in one kernel.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import Lab  # noqa: E402
from lab_roce_cluster import cluster_file  # noqa: E402

LIMIT_S = 300.0
FOLDER = Path("/run")


def sh(lab, command, host="h0"):
    return lab.run(host, "sh", "-c", command, limit=LIMIT_S)


def write_file(lab):
    """The cluster file, where the machines see it."""
    text = cluster_file(lab, reach="local")
    lab.run("h0", "sh", "-c", f"cat > /run/cluster.toml <<'END'\n{text}END\n", limit=LIMIT_S)


def verify(lab, railweave, *flags):
    """The proof, and verify's exit code."""
    words = " ".join(f"'{flag}'" for flag in flags)
    done = sh(lab, f"{railweave} verify /run/cluster.toml --json --bytes 1MiB --limit 60s {words}; echo; echo code $?")
    text = done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1]
    return json.loads(text)


def outcome(proof, start, end, rail):
    return next(one for one in proof["results"]
                if (one["from"], one["to"], one["rail"]) == (start, end, rail))


def all_proven(proof):
    """Four direct pairs of two rails each, both ways, and two distant pairs, forwarded both ways: all over verbs."""
    for one in proof["results"]:
        what = f"{'>'.join(one['hosts'])} rail {one['rail']}: {one.get('why')}"
        assert one["verdict"] == "proven", what
        assert one["coverage"]["transport"] == "verbs", what
    kinds = [one["kind"] for one in proof["results"]]
    assert kinds.count("direct") == 16 and kinds.count("forwarded") == 8, kinds
    for one in proof["results"]:
        for host in one["coverage"]["queue_pair"].get("between", []):
            needed = one["coverage"]["queue_pair"]["packets_needed"]
            assert host["there"]["packets"] >= needed and host["back"]["packets"] >= needed, host
            assert host["forwarded_datagrams"] == 0, host


def marker_missing(lab, railweave):
    """Packets of h0 to h2 over rail 0 are not marked."""
    sh(lab, "tc filter show dev h0p0f0 egress > /run/kept; tc filter del dev h0p0f0 egress pref 18801")
    one = outcome(verify(lab, railweave, "--only", "h0>h2"), 0, 2, 0)
    assert one["verdict"] == "failed", one
    start = "paths 0→2 and 2→0 over rail 0 not tagged on host h0, device roce_h0p0f0; relayed instead"
    assert one["why"].startswith(start), one["why"]
    return one["why"]


def rule_missing(lab, railweave, netdev):
    """The rule at h1 for packets that arrive at one of its netdevs is gone."""
    sh(lab, f"tc filter del dev {netdev} ingress pref 18801")
    one = outcome(verify(lab, railweave, "--only", "h0>h2"), 0, 2, 0)
    assert one["verdict"] == "failed" and one["who"] == "h1", one
    assert f"on {netdev} on h1 is missing" in one["why"], one["why"]
    return one["why"]


def rules(lab, scripts, hosts="h0 h1 h2 h3"):
    """Makes the rules of these hosts anew, from scripts of `railweave apply`."""
    for netdev in [row[1] for host in lab.hosts for row in lab.netdevs(host)]:
        sh(lab, f"tc qdisc del dev {netdev} clsact 2>/dev/null")
    sh(lab, "ip route flush proto 157; for n in $(ls /sys/class/net); do ip neigh flush dev $n nud permanent; done")
    for host in hosts.split():
        done = sh(lab, f"sh {scripts}/apply-tc-destination-{host}.sh")
        assert done.returncode == 0, done


def run(lab, railweave):
    scripts = ROOT / "crates/cluster/tests/golden"
    write_file(lab)
    rules(lab, scripts)
    all_proven(verify(lab, railweave))
    print("all proven", flush=True)
    print(marker_missing(lab, railweave), flush=True)
    rules(lab, scripts)
    print(rule_missing(lab, railweave, "h1p1f0"), flush=True)
    rules(lab, scripts)
    print(rule_missing(lab, railweave, "h1p0f0"), flush=True)


def main():
    railweave = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(Lab.open(sys.argv[2]), railweave)
    with Lab(f"verify{os.getpid() % 100_000}", "ring4", bed="one") as lab:
        return run(lab, railweave)


if __name__ == "__main__":
    main()
