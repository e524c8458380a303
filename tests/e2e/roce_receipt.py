"""`hardware/receipt` in the lab, as far as the lab goes: every command, real queue pairs, no real NIC."""

import json
import sys

from roce_room import PYTHON, Room
from server import BINARY, ROOT

sys.path.insert(0, str(ROOT / "lab"))
import lab_roce_ssh  # noqa: E402
from lab_roce import Lab  # noqa: E402

LIMIT_S = 1500.0


def receipt(name, checks):
    """A triangle's worth: three hosts in a row, so that one pair is distant, and one host that runs it."""
    with Lab(name, "path3", "many") as lab, Room(lab) as room:
        env = lab_roce_ssh.start(lab, f"{room.home.name}/ssh")
        out = "/run/share/receipt"
        words = [PYTHON, ROOT / "hardware" / "receipt", str(room.file), "--railweave", BINARY, "--out", out,
                 "--sizes", "8,4096", "--iterations", "50", "--settle", "6"]
        done = lab.run("h0", *words, env=env, limit=LIMIT_S, directory="/")
        written = look(lab, checks, "without --apply", done)
        if written:
            checks.check("without --apply nothing is changed", not room.all_rules() and not written["applied"])
        done = lab.run("h0", *words, "--apply", "--apply-flag=--yes-live", env=env, limit=LIMIT_S, directory="/")
        written = look(lab, checks, "with --apply", done)
        if not written:
            return
        steps = {one["step"]: one["exit_code"] for one in written["steps"]}
        checks.check("rules are applied over SSH, and are in place", steps.get("apply") == 0, steps)
        measured = {(row["from"], row["to"], row["kind"], row["size_bytes"]): row["typical_us"]
                    for row in written["latency"]}
        checks.check("direct and forwarded paths are measured", measured and all(measured.values()) and
                     {kind for _, _, kind, _ in measured} == {"direct", "forwarded"}, measured)
        versions = written["versions"]
        checks.check("every host's versions are there",
                     all(versions.get(host, {}).get("kernel") and versions[host].get("rdma-core") for host in lab.hosts),
                     versions if len(str(versions)) < 400 else "")
        moved = [one for one in written["changed"] if one["counter"].endswith(("rcvd_pkts", "sent_pkts"))]
        checks.check("counters moved", bool(moved), len(written["changed"]))


def look(lab, checks, what, done):
    folder = lab.machine("h0").share / "receipt"
    try:
        written = json.loads((folder / "RECEIPT.json").read_text())
        table = (folder / "RECEIPT.md").read_text()
    except OSError as error:
        checks.check(f"{what}: a receipt is written", False, f"{error}: {(done.stdout + done.stderr)[-800:]}")
        return None
    ok = written["schema"] == "railweave-receipt/1" and "| path | kind | rail |" in table
    checks.check(f"{what}: a receipt is written, as JSON and as a table", ok, f"exit code {done.returncode}")
    print("\n".join(f"     {line}" for line in table.splitlines()), flush=True)
    return written
