"""Four hosts of the lab as Railweave sees them: their cluster file, their plan, commands on all of them, counters."""

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from server import BINARY, ROOT

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce_cluster import cluster_file  # noqa: E402

PYTHON = "/usr/bin/python3"
PROBE = ROOT / "tests" / "e2e" / "roce_probe.py"
PORTS = itertools.count(7000)
# Flow label 16383 gives UDP source port 65535, the tag port.
TAG_LABEL = 16383
COMMAND_LIMIT_S = 120.0


class Room:
    """A lab of bed `many`, in whose machines `railweave` runs, each host for itself."""

    def __init__(self, lab, **options):
        self.lab = lab
        # Where the machines can read it: they see this machine's file system, but not its /run.
        self.home = tempfile.TemporaryDirectory(prefix="railweave-roce-", dir="/var/tmp")
        self.file = Path(self.home.name) / "cluster.toml"
        self.describe(**options)

    def close(self):
        self.home.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def describe(self, **options):
        """Writes the cluster file anew."""
        self.file.write_text(cluster_file(self.lab, **options))
        self.file.chmod(0o644)
        self._plan = None

    def outside(self, *words):
        """Runs `railweave` on this machine."""
        return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False,
                              stdin=subprocess.DEVNULL)

    @property
    def plan(self):
        if self._plan is None:
            done = self.outside("plan", "--json", str(self.file))
            if done.returncode:
                raise RuntimeError(f"no plan: {done.stderr}")
            self._plan = json.loads(done.stdout)
        return self._plan

    def rails(self, kind="forwarded"):
        """Rails of one kind of path: (from, to, number, crossings), ranks as numbers."""
        return [(path["from"], path["to"], number, rail["crossings"])
                for path in self.plan["paths"] if path["kind"] == kind for number, rail in enumerate(path["rails"])]

    def everywhere(self, *words, hosts=None, limit=COMMAND_LIMIT_S):
        """Runs `railweave WORDS --host HOST FILE` in every host at once: the results by host."""
        jobs = {host: self.lab.start(host, BINARY, *words, "--host", host, str(self.file), limit=limit, directory="/")
                for host in hosts or self.lab.hosts}
        return {host: job.result(limit + 20) for host, job in jobs.items()}

    def apply(self, *words):
        # Hosts cannot ask each other for queue pairs: there is no SSH between them.
        return self.everywhere("apply", "--apply", "--yes-live", *words)

    def probe(self, crossings, label=0, far_label=None, **options):
        """Writes from one end of a rail to the other and back: what both ends said, sender's first."""
        near, far = crossings[0]["out"], crossings[-1]["into"]
        port = next(PORTS)
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        limit = 60 + float(options.get("seconds", 0))
        jobs = []
        for end, other, way, own in ((far, near, f"--listen={port}", label if far_label is None else far_label),
                                     (near, far, f"--connect={self.lab.management(far['host'])}:{port}", label)):
            jobs.append(self.lab.start(
                end["host"], PYTHON, PROBE, "--device", self.device(end), "--address", end["ip"], "--far-address",
                other["ip"], "--flow-label", str(own), way, *words, limit=limit, directory="/"))
        return [self._said(job, limit) for job in reversed(jobs)]

    @staticmethod
    def _said(job, limit):
        done = job.result(limit + 20)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"status": None, "done": 0, "arrived": False, "said": (done.stdout + done.stderr)[-300:]}

    @staticmethod
    def device(end):
        return end["rdma"]

    def rules(self, host):
        """Packets each of the host's filters took: by netdev, direction and preference."""
        script = ('for netdev; do for way in ingress egress; do echo "$netdev $way"; '
                  'tc -j -s filter show dev "$netdev" "$way"; done; done')
        netdevs = [row[1] for row in self.lab.netdevs(host)]
        lines = self.lab.run(host, "sh", "-c", script, "sh", *netdevs, directory="/").stdout.splitlines()
        counted, place = {}, None
        for line in lines:
            if not line.startswith("["):
                place = tuple(line.split())
                continue
            for entry in json.loads(line):
                actions = entry.get("options", {}).get("actions", [])
                if actions:
                    counted[(*place, entry["pref"])] = max(one["stats"]["packets"] for one in actions)
        return counted

    def all_rules(self):
        return {(host, *place): packets for host in self.lab.hosts for place, packets in self.rules(host).items()}

    def forwarded_datagrams(self, host):
        script = "awk '/^Ip: [0-9]/ { print $7 }' /proc/net/snmp"
        return int(self.lab.run(host, "sh", "-c", script, directory="/").stdout)

    def bundles(self):
        """What every host reads of itself, in one room on this machine: the cluster file of it."""
        folder = Path(self.home.name) / "room"
        done = self.everywhere("check", "--bundle", "/run/share/bundle")
        text = self.file.read_text()
        for host in self.lab.hosts:
            source = self.lab.machine(host).share / "bundle"
            target = folder / host
            target.parent.mkdir(parents=True, exist_ok=True)
            if not (source / host).is_dir():
                raise RuntimeError(f"{host} wrote no bundle: {done[host].stderr}")
            subprocess.run(["cp", "-r", source / host, target], check=True)
            subprocess.run(["rm", "-rf", source], check=True)
            text = text.replace(f'reach = "ssh:{self.lab.management(host)}"', f'reach = "recorded:{host}"')
        (folder / "cluster.toml").write_text(text)
        return folder / "cluster.toml"


def frames(file, expression):
    """Packets of a capture that an expression of tcpdump takes."""
    done = subprocess.run(["tcpdump", "-n", "-e", "-r", file, expression], capture_output=True, text=True, check=False)
    # Lines that begin with a tabulator show the bytes of packets whose kind tcpdump does not know.
    return sum(not line.startswith("\t") for line in done.stdout.splitlines())
