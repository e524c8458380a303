"""The server over real queue pairs: four hosts, one rank each, and the same tokens as over shared memory."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from server import BINARY, ROOT, Server

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import Lab  # noqa: E402
from lab_roce_cluster import cluster_file  # noqa: E402

PROMPT = "The capital of France is"
TOKENS = 6
MEMORY_MIB = {"one": 2560, "many": 1024}
READY_LIMIT_S = 300.0
ANSWER_LIMIT_S = 300.0
# An emulated processor takes seconds for a step, and is shared by all ranks.
PATIENCE = {"patience.compute": "120s", "patience.wire": "30s", "patience.relay": "30s", "patience.silent": "30s"}
API = "127.0.0.1:8000"
METRICS_PORT = 9400


def model():
    """The model's file, as `scripts/fetch-model` leaves it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "railweave" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def reference():
    with Server(ranks=4, flags=("--transport", "shm")) as server:
        return server.complete(PROMPT, TOKENS)


class Ranks:
    """One process of `railweave serve` on each host."""

    def __init__(self, lab, file, *words):
        self.lab = lab
        flags = [word for key, value in PATIENCE.items() for word in (f"--{key.replace('.', '-')}", value)]
        self.jobs = {
            host: lab.start(
                host, BINARY, "serve", "--cluster", file, "--host", host, "--transport", "verbs", "--model", model(),
                "--kv-bytes", "64MiB", "--listen", API, "--metrics-listen", f"127.0.0.1:{METRICS_PORT}", "--flight-dir",
                "/run/tmp", *flags, *words, limit=READY_LIMIT_S + 2 * ANSWER_LIMIT_S, directory="/",
                env={"RAILWEAVE_TOKEN": "a shared secret for this test only"})
            for host in lab.hosts}

    def said(self):
        return {host: (job.output("stdout") + job.output("stderr")).decode(errors="replace")[-600:]
                for host, job in self.jobs.items()}

    def ready(self, limit=READY_LIMIT_S):
        """The seconds until every rank was ready; none if that was never."""
        began = time.monotonic()
        script = 'for port; do curl -sf -o /dev/null "http://127.0.0.1:$port/readyz" || exit 1; done'
        while time.monotonic() - began < limit:
            if any(job.poll() is not None for job in self.jobs.values()):
                return None
            # In one machine all ranks listen on one loopback.
            ports = {host: [str(METRICS_PORT + rank)] for rank, host in enumerate(self.lab.hosts)}
            if self.lab.bed == "one":
                ports = {"h0": [port for one in ports.values() for port in one]}
            if all(self.lab.run(host, "sh", "-c", script, "sh", *own, directory="/").returncode == 0
                   for host, own in ports.items()):
                return time.monotonic() - began
            time.sleep(1)
        return None

    def complete(self, prompt=PROMPT, tokens=TOKENS):
        body = json.dumps({"model": self.model_name(), "prompt": prompt, "max_tokens": tokens, "temperature": 0})
        done = self.lab.run("h0", "curl", "-s", "-m", str(ANSWER_LIMIT_S), "-H", "Content-Type: application/json",
                            "-d", body, f"http://{API}/v1/completions", limit=ANSWER_LIMIT_S + 10, directory="/")
        answer = json.loads(done.stdout)
        return answer["choices"][0]["text"] if "choices" in answer else f"no text: {answer}"

    def model_name(self):
        done = self.lab.run("h0", "curl", "-s", f"http://{API}/v1/models", directory="/")
        return json.loads(done.stdout)["data"][0]["id"]

    def end(self):
        for job in self.jobs.values():
            if job.poll() is None:
                job.end(kill=True)
        for job in self.jobs.values():
            job.wait(20)


def serve(name, checks, bed="one", **options):
    if not model().is_file():
        checks.check("the model is there: scripts/fetch-model", False, model())
        return
    expected = reference()
    with Lab(name, "ring4", bed, MEMORY_MIB[bed]) as lab, tempfile.TemporaryDirectory(
            prefix="railweave-serve-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "cluster.toml"
        file.write_text(cluster_file(lab, **{"forward": "off", "reach": "local", **options}))
        ranks = Ranks(lab, str(file))
        try:
            ready = ranks.ready()
            if not checks.check("four ranks are ready over verbs", ready is not None,
                                f"{ready:.1f} s" if ready else ranks.said()):
                return
            began = time.monotonic()
            text = ranks.complete()
            took = time.monotonic() - began
            checks.check("the text is that of shared memory", text == expected,
                         f"{text!r} in {took:.1f} s, {took / TOKENS:.1f} s a token" if text == expected
                         else (text, expected, ranks.said()))
        finally:
            ranks.end()
