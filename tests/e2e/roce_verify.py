"""`railweave verify` over real queue pairs, on a ring of four in one machine: all paths proven, for both kinds of tag and
by relays; then a marker, a rule and a return rule gone, and rules on one rail only."""

import json
import os
import sys
import tempfile
from pathlib import Path

from roce_faults import no_rules, rules, shell
from server import BINARY, ROOT

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import Lab  # noqa: E402
from lab_roce_cluster import cluster_file  # noqa: E402

LIMIT_S = 300.0


class Prover:
    def __init__(self, lab, folder, **options):
        self.lab, self.file = lab, Path(folder) / "cluster.toml"
        self.file.write_text(cluster_file(lab, reach="local", **options))

    def prove(self, *flags):
        """The proof; without results if there is none."""
        done = self.lab.run("h0", BINARY, "verify", "--json", "--bytes", "256KiB", "--limit", "60s", *flags,
                            str(self.file), limit=LIMIT_S, directory="/")
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"results": [], "said": (done.stdout + done.stderr)[-600:]}

    def rail(self, start, end, rail):
        """What came out for one rail between distant hosts."""
        proof = self.prove("--only", f"h{start}>h{end}")
        return next((one for one in proof["results"] if (one["from"], one["to"], one["rail"]) == (start, end, rail)),
                    {"verdict": None, "why": proof.get("said", "no such rail"), "who": None})


def of_kind(proof, kind):
    return [one for one in proof["results"] if one["kind"] == kind]


def all_proven(proof, distant):
    """The first fault: four direct pairs of two rails and two distant pairs, both ways; none if all is proven."""
    for one in proof["results"]:
        if one["verdict"] != "proven":
            return f"{'>'.join(one['hosts'])} rail {one['rail']}: {one.get('why')}"
        if one["kind"] != "relayed" and one["coverage"]["transport"] != "verbs":
            return f"{'>'.join(one['hosts'])}: not over queue pairs"
        for host in (one.get("coverage") or {}).get("queue_pair", {}).get("between", []):
            needed = one["coverage"]["queue_pair"]["packets_needed"]
            if min(host["there"]["packets"], host["back"]["packets"]) < needed or host["forwarded_datagrams"]:
                return f"{'>'.join(one['hosts'])}: {host}"
    counts = {kind: len(of_kind(proof, kind)) for kind in ("direct", distant)}
    wanted = {"direct": 16, distant: 8}
    return None if counts == wanted else f"{counts} instead of {wanted}: {proof.get('said', '')}"


def verify(name, checks):
    with Lab(name, "ring4") as lab, tempfile.TemporaryDirectory(prefix="railweave-verify-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        for tag in ("source-port", "destination"):
            no_rules(lab)
            rules(lab, tag)
            prover = Prover(lab, folder, tag=tag)
            proof = prover.prove()
            wrong = all_proven(proof, "forwarded")
            checks.check(f"4 direct pairs and 2 distant ones are proven, forwarded both ways, by {tag}", not wrong,
                         wrong or f"{proof['seconds']} s")

        shell(lab, "h0", "tc filter del dev h0p0f0 egress pref 18801")
        one = prover.rail(0, 2, 0)
        start = "paths 0→2 and 2→0 over rail 0 not tagged on host h0, device roce_h0p0f0; relayed instead"
        checks.check("a missing marker is named with its paths, host and device",
                     one["verdict"] == "failed" and one["why"].startswith(start), one["why"])
        for what, netdev in (("rule", "h1p1f0"), ("return rule", "h1p0f0")):
            no_rules(lab)
            rules(lab, "destination")
            shell(lab, "h1", f"tc filter del dev {netdev} ingress pref 18801")
            one = prover.rail(0, 2, 0)
            checks.check(f"a missing {what} is named with its host and netdev", one["verdict"] == "failed" and
                         one["who"] == "h1" and f"on {netdev} on h1 is missing" in one["why"], one["why"])

        no_rules(lab)
        rules(lab, "destination")
        second = " ".join(row[1] for row in lab.netdevs() if row[1].endswith("f1"))
        shell(lab, "h0", f"for n in {second}; do tc qdisc del dev $n clsact 2> /dev/null; done; true")
        found = of_kind(prover.prove(), "forwarded")
        by_rail = {rail: {one["verdict"] for one in found if one["rail"] == rail} for rail in (0, 1)}
        checks.check("with rules on one rail only, that rail is proven and the other is not",
                     by_rail == {0: {"proven"}, 1: {"failed"}}, by_rail)

        no_rules(lab)
        proof = Prover(lab, folder, forward="off").prove()
        wrong = all_proven(proof, "relayed")
        checks.check("without forwarding all are proven, distant ones by relays", not wrong,
                     wrong or f"{proof['seconds']} s")
