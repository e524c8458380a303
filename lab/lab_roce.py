"""A cluster with RDMA on a machine without it: hosts in virtual machines, whose netdevs have soft-RoCE devices.

Two beds, in which shapes, hosts, netdevs, devices and addresses are the same:

- `one`: all hosts in one machine. Up in seconds and fast, for most tests.
- `many`: a machine for each host, so that each can be killed, frozen and started again by itself.

A cable joins two ports with two functions each: netdevs `h0p0f0` and `h0p0f1`, devices `roce_h0p0f0` and
`roce_h0p0f1`. Hosts have an address on a management network that carries no data. Nothing leaves this machine.

Only the standard library. Needs qemu-system-x86, busybox-static, iproute2 and Debian's packages of RDMA; no KVM.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import lab_netns
from lab_netns import FUNCTIONS, MTU_BYTES, NAME, SHAPES, LabError
from lab_roce_image import GUEST, image
from lab_roce_machine import BOOT_LIMIT_S, POLL_S, QEMU, Machine, alive, marked, ours

SCHEMA = "railweave-roce-lab/1"
RUN = Path("/run") if os.geteuid() == 0 else Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
LOCKS = RUN / "lock" if os.geteuid() == 0 else RUN
PREFIX = "railweave-roce-"
BEDS = ("one", "many")
COMMAND_LIMIT_S = 120.0
# What a command's answer may take beyond the command's own limit.
SLACK_S = 15.0
# How long recorders of packets must have written nothing to be done, and how long that is waited for.
QUIET_S = 0.4
QUIET_LIMIT_S = 5.0
# Inherited by the machines' processes: how they are told from others.
MARK = "ROCE_LAB_MARK"


class Lab:
    """One lab, by its name. Usable with `with`: comes up at the start, is gone at the end."""

    def __init__(self, name="lab", shape="pair", bed="one", memory_mib=None, say=lambda _: None):
        if not NAME.fullmatch(name):
            raise LabError(f"{name!r} is no name of a lab: at most 16 of a-z, 0-9 and _, such as ring_a")
        if shape not in SHAPES or any("." not in end for cable in SHAPES[shape][1] for end in cable):
            raise LabError(f"{shape!r} is no shape of cables; there are {', '.join(shapes())}")
        if bed not in BEDS:
            raise LabError(f"{bed!r} is no bed; there are {' and '.join(BEDS)}")
        self.name, self.shape, self.bed, self.say = name, shape, bed, say
        self.memory_mib = memory_mib or (1024 if bed == "one" else 384)
        # Names and addresses are those of the lab of network namespaces.
        self.map = lab_netns.Lab(name, shape)
        self.folder = RUN / f"{PREFIX}{name}"
        self.state_file = self.folder / "state.json"
        self.state, self.machines, self.switch = None, {}, None

    @classmethod
    def open(cls, name="lab"):
        """A lab that is up."""
        state = cls(name)._read()
        if state is None:
            raise LabError(f"there is no lab {name!r}; `lab/roce up pair --name {name}` makes one")
        lab = cls(name, state["shape"], state["bed"], state["memory_mib"])
        lab.state = state
        lab._know_machines()
        return lab

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    # Names.

    @property
    def hosts(self):
        return self.map.hosts

    @property
    def cables(self):
        return self.map.cables

    def netdevs(self, host=None):
        """The functions of a host, or of all: rows of host, netdev, hardware address, address, device, netdev at the
        other end of the cable."""
        rows = []
        for cable in self.cables:
            for port, far in (cable, cable[::-1]):
                for function in range(FUNCTIONS):
                    name, peer = (f"{end.replace('.', '')}f{function}" for end in (port, far))
                    rows.append((port.split(".")[0], name, self.map.mac(port, function),
                                 self.map.address(port, function), f"roce_{name}", peer))
        return sorted(row for row in rows if host in (None, row[0]))

    def management(self, host):
        """A host's address on the management network."""
        return self.map.management(host)

    def environment(self, host):
        """Variables that tell a command where it runs."""
        rows = self.netdevs(host)
        return {"ROCE_LAB": "1", "ROCE_BED": self.bed, "ROCE_SHAPE": self.shape, "ROCE_HOST": host,
                "ROCE_HOSTS": " ".join(self.hosts), "ROCE_DEVICES": " ".join(row[4] for row in rows),
                "ROCE_TABLE": "/run/share/guest/netdevs", "ROCE_FAULT": "/run/share/guest/fault"}

    def machine(self, host):
        if host not in self.hosts:
            raise LabError(f"{host!r} is no host of this lab; there are {', '.join(self.hosts)}")
        return self.machines["all" if self.bed == "one" else host]

    # Up and down.

    def up(self, limit=BOOT_LIMIT_S):
        """Builds the lab; one of the same name is taken down first. The seconds of its parts."""
        seconds, started = {}, time.monotonic()

        def lap(part):
            nonlocal started
            now = time.monotonic()
            seconds[part], started = round(now - started, 2), now

        with self._lock():
            self._down()
            files = image(say=self.say)
            lap("image")
            self.state = {"schema": SCHEMA, "name": self.name, "shape": self.shape, "bed": self.bed,
                          "memory_mib": self.memory_mib, "token": secrets.token_hex(16), "faults": [], "dead": []}
            # Before the first machine, so that a crash leaves nothing that `down` does not know.
            self._write()
            try:
                self._know_machines()
                if self.bed == "many":
                    self._start_switch()
                for machine in self.machines.values():
                    self._start(machine, files)
                for machine in self.machines.values():
                    machine.booted(limit)
                lap("boot")
                self._network(self.machines.values())
                lap("network")
            except BaseException:
                self._down()
                raise
        return seconds

    def _know_machines(self):
        names = ["all"] if self.bed == "one" else self.hosts
        self.machines = {name: Machine(name, self.folder / name, self._mark()) for name in names}

    def _mark(self):
        return MARK, f"{self.name}:{self.state['token']}"

    def _start(self, machine, files):
        host = None if machine.name == "all" else machine.name
        rows = self.netdevs(host)
        tables = {"netdevs": "".join(f"{' '.join(row)}\n" for row in rows), "mtu": f"{MTU_BYTES}\n"}
        links = []
        if host is None:
            tables["management"] = "".join(f"{self.management(one)}/24\n" for one in self.hosts)
        else:
            tables["management"] = f"{self._management_mac(host)} {self.management(host)}/24\n"
            links = [(mac, MTU_BYTES, *self._sockets(name, peer)) for _, name, mac, _, _, peer in rows]
            links.append((self._management_mac(host), 1500, *self._sockets(f"{host}m", f"{host}s")))
            # A machine that was killed leaves its ends of the sockets.
            for _, _, own, _ in links:
                own.unlink(missing_ok=True)
        machine.start(*files, GUEST, tables, cpus=2 if host is None else 1, memory_mib=self.memory_mib,
                      netdevs=links)

    def _management_mac(self, host):
        return f"02:72:77:ff:00:{self.hosts.index(host):02x}"

    def _sockets(self, own, far):
        folder = self.folder / "cables"
        folder.mkdir(exist_ok=True)
        return folder / own, folder / far

    def _start_switch(self):
        """The management network: a switch in a machine without anything else."""
        words = [QEMU, "-machine", "none", "-nodefaults", "-no-user-config", "-display", "none"]
        for host in self.hosts:
            own, far = self._sockets(f"{host}s", f"{host}m")
            words += ["-netdev", f"dgram,id=d{host},local.type=unix,local.path={own},"
                      f"remote.type=unix,remote.path={far}", "-netdev", f"hubport,id=p{host},hubid=0,netdev=d{host}"]
        with open(self.folder / "switch.log", "wb") as log:
            try:
                self.switch = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                               env=marked(self._mark()), start_new_session=True)
            except FileNotFoundError:
                raise LabError(f"there is no {QEMU} here; install qemu-system-x86") from None

    def _network(self, machines):
        script = f"/run/share/guest/network-{self.bed}"
        jobs = [machine.start_job(["sh", script], COMMAND_LIMIT_S, directory="/") for machine in machines]
        for job in jobs:
            done = job.result(COMMAND_LIMIT_S + SLACK_S)
            if done.returncode:
                raise LabError(f"{job.machine.name}: its network failed: {(done.stderr or done.stdout).strip()}")

    def down(self):
        """Ends the machines and removes what the lab left, if it is there. The ids of the processes that it ended."""
        with self._lock():
            return self._down()

    def _down(self):
        self.state = self._read()
        ended = self.processes()
        for pid in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + SLACK_S
        mine = [one for one in (self.switch, *(machine.process for machine in self.machines.values())) if one]
        while left := [pid for pid in ended if alive(pid)]:
            if time.monotonic() > deadline:
                raise LabError(f"processes {', '.join(map(str, left))} do not end")
            time.sleep(POLL_S)
        for process in mine:
            process.wait()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.state, self.machines, self.switch = None, {}, None
        return ended

    def processes(self):
        """Ids of the machines' processes that run."""
        if self.state is None:
            return []
        return [int(entry.name) for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and int(entry.name) != os.getpid() and ours(int(entry.name), self._mark())]

    # Commands in hosts.

    def start(self, host, *words, limit=COMMAND_LIMIT_S, env=None, stdin=b"", directory=None):
        """Starts a command in a host: a job. It is ended when its limit is over, or the lab goes down."""
        return self.machine(host).start_job(words, limit, {**self.environment(host), **(env or {})}, stdin, directory)

    def run(self, host, *words, limit=COMMAND_LIMIT_S, env=None, stdin=b"", directory=None):
        """Runs a command in a host to its end. Exit code 124: it ran past its limit; 137: its machine ended."""
        return self.start(host, *words, limit=limit, env=env, stdin=stdin, directory=directory).result(limit + SLACK_S)

    def run_all(self, *words, hosts=None, limit=COMMAND_LIMIT_S, env=None):
        """Runs a command in several hosts at once, all by default: its results by host."""
        jobs = {host: self.start(host, *words, limit=limit, env=env) for host in hosts or self.hosts}
        return {host: job.result(limit + SLACK_S) for host, job in jobs.items()}

    @contextlib.contextmanager
    def capture(self, target, hosts=None):
        """Records packets at the hosts' netdevs while the block runs: `target/NETDEV.pcap`, both directions."""
        target = Path(target)
        target.mkdir(parents=True, exist_ok=True)
        jobs = {}
        try:
            for host, netdev, *_ in self.netdevs():
                if host in (hosts or self.hosts):
                    jobs[netdev] = self.start(host, "tcpdump", "-Z", "root", "--immediate-mode", "-U", "-n", "-s", "256",
                                              "-i", netdev, "-w", f"/run/share/{netdev}.pcap", limit=3600,
                                              directory="/")
            self._await(lambda: all(b"listening on" in job.output("stderr") or job.poll() is not None
                                    for job in jobs.values()), "tcpdump does not start")
            for netdev, job in jobs.items():
                if job.poll() is not None:
                    raise LabError(f"{netdev}: cannot record: {job.output('stderr').decode(errors='replace').strip()}")
            yield target
            # A recorder that is ended drops what it has not read yet.
            self._await_quiet([job.machine.share / f"{netdev}.pcap" for netdev, job in jobs.items()])
        finally:
            for netdev, job in jobs.items():
                with contextlib.suppress(LabError):
                    job.end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(SLACK_S)
                with contextlib.suppress(FileNotFoundError):
                    shutil.move(job.machine.share / f"{netdev}.pcap", target / f"{netdev}.pcap")

    @staticmethod
    def _await_quiet(files):
        """Waits until files grow no more. A network is never quite quiet, so not for long."""
        sizes, deadline = None, time.monotonic() + QUIET_LIMIT_S
        while (now := [file.stat().st_size for file in files]) != sizes and time.monotonic() < deadline:
            sizes = now
            time.sleep(QUIET_S)

    @staticmethod
    def _await(condition, what):
        deadline = time.monotonic() + SLACK_S
        while not condition():
            if time.monotonic() > deadline:
                raise LabError(f"{what} within {SLACK_S:g} s")
            time.sleep(POLL_S)

    # Faults.

    def pull(self, cable):
        """Pulls a cable: both ends stay up and lose their carrier."""
        self._carrier(cable, up=False)
        self._note(f"cable-pull {cable}")

    def mend(self, cable):
        """Plugs a cable in again."""
        self._carrier(cable, up=True)
        self._forget(f"cable-pull {cable}")

    def _carrier(self, cable, up):
        ends = self.map.cable(cable)
        if self.bed == "one":
            self._fault("cable-mend" if up else "cable-pull", "-".join(ends))
        else:
            self._set_links(ends, up)

    def _set_links(self, ports, up):
        """Gives the netdevs of these ports a carrier, or takes it. A dead host has none to take."""
        names = [port.replace(".", "") for port in ports]
        for host in self.hosts:
            links = [("set_link", {"name": f"n{number}", "up": up})
                     for number, row in enumerate(self.netdevs(host)) if row[1][:-2] in names]
            if links and self.machine(host).runs():
                self.machine(host).monitor(*links)

    def wire(self, cable, *netem):
        """Makes a cable lossy, slow and so on, as tc's netem says it: `wire("h0-h1", "loss", "10%")`. With `h0>h1`, in
        this direction only."""
        ends, both = self._directed(cable)
        if self.bed == "one":
            self._fault("wire", ("-" if both else ">").join(ends), *netem)
        else:
            for netdev, host in self._senders(ends, both):
                self._tc(host, "tc", "qdisc", "replace", "dev", netdev, "root", "netem", "limit", "10000", *netem)
        self._forget_like(rf"wire {re.escape(cable)} ")
        self._note(f"wire {cable} {' '.join(map(str, netem))}")

    def wire_mend(self, cable):
        """Takes back what `wire` did."""
        ends, both = self._directed(cable)
        if self.bed == "one":
            self._fault("wire-mend", ("-" if both else ">").join(ends))
        else:
            for netdev, host in self._senders(ends, both):
                if self.machine(host).runs():
                    self._tc(host, "sh", "-c", f"tc qdisc delete dev {netdev} root 2>/dev/null; true")
        self._forget_like(rf"wire {re.escape(cable)} ")

    def _directed(self, cable):
        a, b = self.map.cable(cable.replace(">", "-"))
        if ">" not in cable:
            return (a, b), True
        first = cable.split(">")[0]
        return ((a, b) if first in (a, a.split(".")[0]) else (b, a)), False

    def _senders(self, ends, both):
        wanted = [end.replace(".", "") for end in (ends if both else ends[:1])]
        return [(row[1], row[0]) for row in self.netdevs() if row[1][:-2] in wanted]

    def _tc(self, host, *words):
        done = self.run(host, *words, directory="/")
        if done.returncode:
            raise LabError(f"{host}: `{' '.join(map(str, words))}` failed: {done.stderr.strip()}")

    def _fault(self, *words):
        job = self.machines["all"].start_job(["sh", "/run/share/guest/fault", *words], COMMAND_LIMIT_S, directory="/")
        done = job.result(COMMAND_LIMIT_S + SLACK_S)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise LabError(f"`fault {' '.join(map(str, words))}` ended with {done.returncode}: {said or 'nothing said'}")

    def kill(self, host):
        """Cuts a host's power: its processes end, and its neighbours' ports lose their carrier."""
        if self.bed == "one":
            self.machine(host)
            self._fault("host-kill", host)
        else:
            self.machine(host).kill()
            self._set_links(self._neighbours(host), up=False)
        self.state["dead"] = sorted({*self.state["dead"], host})
        self._write()

    def boot(self, host):
        """Starts a host that was killed."""
        if host in self.hosts and host not in self.state["dead"]:
            raise LabError(f"{host} is up")
        machine = self.machine(host)
        if self.bed == "one":
            self._fault("host-start", host)
        else:
            self._start(machine, image(say=self.say))
            machine.booted()
            self._set_links(self._neighbours(host), up=True)
            self._network([machine])
        self.state["dead"].remove(host)
        self._write()
        for fault in self.state["faults"]:
            if fault.startswith("cable-pull "):
                self._carrier(fault.split()[1], up=False)

    def _neighbours(self, host):
        """The far ends of a host's cables."""
        return [far for a, b in self.cables for end, far in ((a, b), (b, a)) if end.split(".")[0] == host]

    def freeze(self, host):
        """Stops a host where it is; its links stay up. With all hosts in one machine, only its processes."""
        if self.bed == "one":
            self.machine(host)
            self._fault("host-freeze", host)
        else:
            self.machine(host).monitor(("stop", {}))
        self._note(f"freeze {host}")

    def thaw(self, host):
        """Lets a frozen host go on."""
        if self.bed == "one":
            self.machine(host)
            self._fault("host-thaw", host)
        else:
            self.machine(host).monitor(("cont", {}))
        self._forget(f"freeze {host}")

    def mend_all(self):
        """Undoes every fault, the latest first, and starts the hosts that were killed. What was undone."""
        undone = []
        for fault in reversed(self.state["faults"][:]):
            what, where = fault.split()[:2]
            {"cable-pull": self.mend, "wire": self.wire_mend, "freeze": self.thaw}[what](where)
            undone.append(fault)
        for host in self.state["dead"][:]:
            self.boot(host)
            undone.append(f"kill {host}")
        return undone

    settle = staticmethod(lab_netns.Lab.settle)

    # State.

    def _note(self, fault):
        if fault not in self.state["faults"]:
            self.state["faults"].append(fault)
            self._write()

    def _forget(self, fault):
        self._forget_like(f"{re.escape(fault)}$")

    def _forget_like(self, pattern):
        self.state["faults"] = [fault for fault in self.state["faults"] if not re.match(pattern, fault)]
        self._write()

    def _read(self):
        try:
            state = json.loads(self.state_file.read_text())
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) and state.get("schema") == SCHEMA else None

    def _write(self):
        self.folder.mkdir(mode=0o700, exist_ok=True)
        new = self.folder / "state.new"
        new.write_text(json.dumps(self.state, indent=1))
        new.replace(self.state_file)

    @contextlib.contextmanager
    def _lock(self):
        with open(LOCKS / f"{PREFIX}{self.name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LabError(f"another command is building or removing the lab {self.name!r}") from None
            yield


def shapes():
    """The shapes that are made of cables only."""
    return [name for name, (_, cables) in SHAPES.items() if all("." in end for cable in cables for end in cable)]


def labs():
    """Names of the labs that are up."""
    return sorted(folder.name.removeprefix(PREFIX) for folder in RUN.glob(f"{PREFIX}*")
                  if (folder / "state.json").exists())
