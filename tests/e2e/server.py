"""A railweave server for tests: started on free ports, watched, and ended with nothing left.

Only the standard library, so that the fault drills run wherever Python does.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# Whoever stops a test has it take its servers down.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = Path(os.environ.get("E2E_BINARY", TARGET / "release" / "railweave"))
START_LIMIT_S = 120.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_ports(count):
    """Consecutive free ports: the first of them."""
    for _ in range(100):
        first = free_port()
        if first + count >= 65_535:
            continue
        probes = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free ports")


def ask(port, path, body=None, timeout=30.0):
    """One HTTP exchange on loopback: status and parsed JSON, or text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request(
                "POST", path, json.dumps(body), {"Content-Type": "application/json"}
            )
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


class Server:
    """`railweave serve` and its ranks."""

    def __init__(self, ranks=4, model=None, flags=(), env=None):
        self.ranks = ranks
        self.failed_before = Checks.failures
        self.api = free_port()
        self.metrics = free_ports(ranks)
        self.home = tempfile.TemporaryDirectory(prefix="railweave-e2e-")
        model = model or os.environ.get("E2E_MODEL", "smollm2-135m")
        command = [
            str(BINARY), "serve", "--model", model, "--ranks", str(ranks),
            "--listen", f"127.0.0.1:{self.api}",
            "--metrics-listen", f"127.0.0.1:{self.metrics}",
            "--flight-dir", self.home.name, *flags,
        ]
        self.log_path = Path(self.home.name) / "log"
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def log_text(self):
        self.log.flush()
        return self.log_path.read_text(errors="replace")

    def wait_ready(self, limit=START_LIMIT_S, ranks=None):
        deadline = time.monotonic() + limit
        waiting = set(range(self.ranks) if ranks is None else ranks)
        while waiting:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"ranks {sorted(waiting)} not ready in {limit} s:\n{self.log_text()}")
            for rank in list(waiting):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if ask(self.metrics + rank, "/readyz", timeout=2)[0] == 200:
                        waiting.discard(rank)
            time.sleep(0.05)

    def children(self):
        """The processes of the ranks, by rank."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and b"rank" in words:
                    found[int(words[words.index(b"rank") + 1 :][rank_word(words)])] = int(entry.name)
        return found

    def progress(self, rank, timeout=5.0):
        return ask(self.metrics + rank, "/progress", timeout=timeout)[1]

    def fault(self, rank, **order):
        status, answer = ask(self.metrics + rank, "/faults", order)
        if status != 200:
            raise RuntimeError(f"rank {rank} did not take {order}: {answer}")

    def set(self, key, value):
        for rank in range(self.ranks):
            status, answer = ask(self.metrics + rank, "/settings", {"key": key, "value": value})
            if status != 200:
                raise RuntimeError(f"rank {rank} did not set {key}: {answer}")

    def complete(self, prompt, tokens, timeout=120.0, **more):
        body = {"model": self.model_name(), "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        status, answer = ask(self.api, "/v1/completions", body, timeout)
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        return answer["choices"][0]["text"]

    def model_name(self):
        if not hasattr(self, "_model"):
            self._model = ask(self.api, "/v1/models")[1]["data"][0]["id"]
        return self._model

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        if Checks.failures > self.failed_before:
            tail = self.log_path.read_text(errors="replace").splitlines()[-80:]
            print("\n".join(["     the server's log ends:", *(f"     | {line}" for line in tail)]), flush=True)
        self.home.cleanup()


def rank_word(words):
    """Where the rank's number stands after the word `rank`."""
    after = words[words.index(b"rank") + 1 :]
    for index, word in enumerate(after):
        if re.fullmatch(rb"\d+", word):
            return index
    raise OSError("no rank number")


def leftovers(binary=BINARY):
    """What should be gone: processes of this binary, and with them their ports and nameless
    memory, and anything with a name in shared memory."""
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "exe").split(" (deleted)")[0] == str(binary.resolve()):
                    left.append(f"process {entry.name}")
    left += [str(path) for path in Path("/dev/shm").glob("railweave*")]
    return left


class Clients:
    """Requests that run in the background and are counted."""

    def __init__(self, server, count, prompt, tokens, expected=None):
        self.server, self.expected = server, expected
        self.results, self.errors, self.stopping = [], [], False
        self.threads = [
            threading.Thread(target=self._run, args=(prompt, tokens), daemon=True)
            for _ in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, prompt, tokens):
        while not self.stopping:
            try:
                text = self.server.complete(prompt, tokens)
                self.results.append(text)
                if self.expected is not None and text != self.expected:
                    self.errors.append(f"wrong text: {text!r}")
            except Exception as error:  # what a client sees is what is counted
                self.errors.append(str(error)[:200])
                time.sleep(0.2)

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(150)


class Checks:
    """Counts what passed and what did not, and prints the closing line."""

    failures = 0  # of all of them: a server prints its log if checks failed while it ran

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, ok, detail=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        Checks.failures += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}{': ' + str(detail) if detail != '' else ''}", flush=True)
        return ok

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed else 0)
