"""One virtual machine of the lab, under software emulation, and the commands that run in it.

The machine reads this machine's root, read only, so what was built here runs there in place. Its own folder is shared
with it for writing: a command is a folder `share/jobs/ID`, whose name is written into the machine's first port, and
which holds its output and at last its exit code. So nothing keeps a connection, and any number of processes may run
commands in the same machine.
"""

import contextlib
import errno
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from lab_netns import LabError

QEMU = "qemu-system-x86_64"
# Emulated machines come up in seconds; a busy machine may take many times as long.
BOOT_LIMIT_S = 180.0
QMP_LIMIT_S = 10.0
POLL_S = 0.01
# What a command's exit code is when its machine ended under it: as for a killed process.
EXIT_LOST = 128 + signal.SIGKILL
# Variables of the caller that a command in a machine keeps.
KEPT = ("RUST", "CARGO_MANIFEST", "CARGO_PKG", "CARGO_BIN_EXE", "NEXTEST", "PROPTEST", "RAILWEAVE", "INSTA")


class Machine:
    """A machine by its folder. `netdevs` are qemu's: pairs of a socket's path here and one at the other end."""

    def __init__(self, name, folder, mark):
        """`mark` is a variable and its value, by which its process is known."""
        self.name, self.folder, self.mark = name, Path(folder), mark
        self.share = self.folder / "share"
        self.process = None

    # Its process.

    def start(self, kernel, image, guest, tables, cpus, memory_mib, netdevs=()):
        """Starts it; `booted` waits for it. `guest` is the folder of scripts and `tables` are files beside them."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        (self.share / "jobs").mkdir(parents=True)
        shutil.copytree(guest, self.share / "guest")
        for name, text in {"name": f"{self.name}\n", **tables}.items():
            (self.share / "guest" / name).write_text(text)
        # A pipe instead of a socket: the guest's end never closes, and several processes may write lines into it.
        for end in ("in", "out"):
            os.mkfifo(self.folder / f"port.{end}")
        with open(self.folder / "qemu.log", "wb") as log:
            try:
                self.process = subprocess.Popen(
                    self._command(kernel, image, cpus, memory_mib, netdevs), stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, env=marked(self.mark), start_new_session=True)
            except FileNotFoundError:
                raise LabError(f"there is no {QEMU} here; install qemu-system-x86") from None
        (self.folder / "pid").write_text(str(self.process.pid))

    def _command(self, kernel, image, cpus, memory_mib, netdevs):
        words = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
                 # Never KVM: where it is nested it may start and then hang.
                 "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(cpus), "-m", str(memory_mib),
                 "-kernel", kernel, "-initrd", image,
                 "-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on",
                 "-serial", f"file:{self.folder}/console", "-qmp", f"unix:{self.folder}/qmp,server=on,wait=off",
                 "-device", "virtio-serial-pci", "-chardev", f"pipe,id=port,path={self.folder}/port",
                 "-device", "virtserialport,chardev=port", "-device", "virtio-rng-pci"]
        shares = {"root": ("/", ",readonly=on"), "share": (self.share, "")}
        for tag, (path, flags) in shares.items():
            words += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{flags}",
                      "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        for number, (mac, mtu, own, far) in enumerate(netdevs):
            words += ["-netdev", f"dgram,id=n{number},local.type=unix,local.path={own},"
                      f"remote.type=unix,remote.path={far}",
                      "-device", f"virtio-net-pci,netdev=n{number},mac={mac},host_mtu={mtu}"]
        return [str(word) for word in words]

    def runs(self):
        """Whether its process is there."""
        if self.process is not None:
            return self.process.poll() is None
        return ours(self.pid(), self.mark)

    def pid(self):
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "pid").read_text())
        return None

    def booted(self, limit=BOOT_LIMIT_S):
        """Waits until it takes commands; the seconds since its kernel started, by its own clock."""
        deadline = time.monotonic() + limit
        while not (self.share / "ready").exists():
            if not self.runs():
                raise LabError(f"{self.name}: its machine ended: {self.said()}")
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: not up within {limit:g} s: {self.said()}")
            time.sleep(POLL_S)
        return float((self.share / "ready").read_text())

    def said(self):
        """The last of what its kernel and its process printed."""
        text = ""
        for name in ("qemu.log", "console"):
            with contextlib.suppress(OSError):
                text += (self.folder / name).read_text(errors="replace")[-2000:]
        return text.strip() or "it printed nothing"

    def kill(self):
        """Ends its process at once, as a power cut does."""
        pid = self.pid()
        if pid is not None and self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + QMP_LIMIT_S
            while self.runs() and time.monotonic() < deadline:
                time.sleep(POLL_S)

    # Its monitor.

    def monitor(self, *commands):
        """Gives commands to its process: pairs of a name and arguments."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(QMP_LIMIT_S)
            try:
                client.connect(str(self.folder / "qmp"))
                with client.makefile("rw") as lines:
                    lines.readline()
                    for name, arguments in (("qmp_capabilities", {}), *commands):
                        lines.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
                        lines.flush()
                        self._answer(name, lines)
            except OSError as error:
                raise LabError(f"{self.name}: its machine does not answer: {error}") from None

    def _answer(self, name, lines):
        """Reads up to the answer to a command; events come between."""
        while line := lines.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise LabError(f"{self.name}: {name}: {answer['error'].get('desc', answer['error'])}")
            if "return" in answer:
                return
        raise LabError(f"{self.name}: its machine ended")

    # Its commands.

    def start_job(self, words, limit, env=None, stdin=b"", directory=None):
        """Starts a command in it."""
        words = [str(word) for word in words]
        if not words:
            raise LabError("no command was given")
        kept = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
        lines = [f"export {key}={shlex.quote(str(value))}" for key, value in {**kept, **(env or {})}.items()]
        lines.append(f"cd {shlex.quote(str(directory or os.getcwd()))} || exit 126")
        lines.append(f"exec {shlex.join(words)}")
        job = Job(self, self.share / "jobs" / secrets.token_hex(6), words)
        job.folder.mkdir()
        (job.folder / "script").write_text("\n".join(lines) + "\n")
        (job.folder / "stdin").write_bytes(stdin)
        (job.folder / "limit").write_text(f"{limit:g}\n")
        self.tell(f"run {job.folder.name}")
        return job

    def tell(self, line):
        """Writes a line to its agent."""
        try:
            port = os.open(self.folder / "port.in", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                raise LabError(f"{self.name} is down") from None
            raise
        try:
            # Shorter than what a pipe takes in one piece, so lines of several processes do not mix.
            os.write(port, f"{line}\n".encode())
        except BlockingIOError:
            raise LabError(f"{self.name} does not take commands; is it frozen?") from None
        finally:
            os.close(port)


class Job:
    """A command in a machine."""

    def __init__(self, machine, folder, words):
        self.machine, self.folder, self.words = machine, folder, words

    def poll(self):
        """Its exit code, or none while it runs."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "exit").read_text())
        return None if self.machine.runs() else EXIT_LOST

    def wait(self, limit):
        """Waits for its end. A machine that was frozen or does not answer is not waited for any longer."""
        deadline = time.monotonic() + limit
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.words, limit, self.output("stdout"), self.output("stderr"))
            time.sleep(POLL_S)
        return code

    def end(self, kill=False):
        """Asks it to end, or kills it."""
        if self.poll() is None:
            self.machine.tell(f"{'kill' if kill else 'end'} {self.folder.name}")

    def output(self, name="stdout", start=0):
        """What it has printed so far, from an offset on."""
        with contextlib.suppress(OSError), open(self.folder / name, "rb") as file:
            file.seek(start)
            return file.read()
        return b""

    def result(self, limit):
        """Waits for its end; all about it."""
        code = self.wait(limit)
        stdout, stderr = (self.output(name).decode(errors="replace") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self.words, code, stdout, stderr)


def marked(mark):
    """The environment of a process of the lab."""
    name, value = mark
    return {**os.environ, name: value}


def ours(pid, mark):
    """Whether a process has this mark and runs. Its id alone would not do: another process may have got it since."""
    with contextlib.suppress(OSError):
        return alive(pid) and "=".join(mark).encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def alive(pid):
    """Whether a process runs and is no zombie."""
    with contextlib.suppress(OSError, IndexError):
        return pid is not None and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False
