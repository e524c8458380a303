"""`railweave verify` over real queue pairs: direct, forwarded and relayed paths of a ring, in one machine."""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from roce_faults import no_rules, rules
from server import BINARY, ROOT

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import Lab  # noqa: E402
from lab_roce_cluster import cluster_file  # noqa: E402

LIMIT_S = 240.0
# The distant pairs of a ring of four, each over one rail only.
ONE_RAIL = [{"from": near, "to": far, "via": [middle], "kind": "forwarded", "rails": [0]}
            for near, middle, far in (("h0", "h1", "h2"), ("h2", "h1", "h0"), ("h1", "h2", "h3"), ("h3", "h2", "h1"))]


def prove(lab, folder, **options):
    """The proof, and the file: rules are made first where the plan forwards."""
    file = Path(folder) / "cluster.toml"
    file.write_text(cluster_file(lab, reach="local", **options))
    if options["forward"] != "off":
        rules(lab, str(file))
    done = lab.run("h0", BINARY, "verify", "--json", "--transport", "verbs", "--bytes", "256KiB", "--limit", "60s",
                   str(file), limit=LIMIT_S, directory="/")
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, {}, (done.stdout + done.stderr)[-600:]


def proven(proof):
    """How many results of each kind of path were proven; and what of the others was said."""
    results = proof.get("results", [])
    good = Counter(one["kind"] for one in results if one.get("verdict") == "proven")
    return dict(good), [one for one in results if one.get("verdict") != "proven"]


def verify(name, checks):
    with Lab(name, "ring4") as lab, tempfile.TemporaryDirectory(prefix="railweave-verify-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        for what, options, wanted in (
                ("forwarded", {"forward": "required"}, {"direct": 8, "forwarded": 4}),
                ("by source port", {"forward": "required", "tag": "source-port"}, {"direct": 8, "forwarded": 4}),
                ("on one rail only", {"forward": "auto", "routes": ONE_RAIL}, {"direct": 8, "forwarded": 2}),
                ("off", {"forward": "off"}, {"direct": 8})):
            code, proof, said = prove(lab, folder, **options)
            good, bad = proven(proof)
            # A pair's rail is one result or two, for one direction each; every pair is there.
            ok = code == 0 and not bad and all(good.get(kind, 0) >= least for kind, least in wanted.items())
            checks.check(f"verify proves all paths with forwarding {what}", ok,
                         f"{good}, {proof.get('seconds')} s" if ok else (code, good, str(bad[:2])[:800], said[-400:]))
            no_rules(lab)
