"""A cluster on one machine: each host is a network namespace, each cable a bridge that joins nothing else.

A host has ports `p0`, `p1` with two functions each (netdevs `p0f0`, `p0f1`), and `mgmt` on a management network that
carries no data. The far ends of all netdevs lie in a namespace of wires, so that a pulled cable looks as it does on a
real host: both ends stay up and lose their carrier. Nothing leaves these namespaces, and nothing is forwarded by them.

Only the standard library. Needs root, iproute2, and a kernel with namespaces, veth and bridges.
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
import time
from pathlib import Path

SCHEMA = "railweave-lab/1"
RUN = Path("/run")
NETNS = RUN / "netns"
FUNCTIONS = 2
MTU_BYTES = 9000
MANAGEMENT_MTU_BYTES = 1500
COMMAND_LIMIT_S = 30.0
# How long a process that was asked to end may take before it is killed.
GRACE_S = 3.0
NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,15}")
# Inherited by whatever is started in a lab: how its processes are told from others.
MARK = "NETNS_LAB"


class LabError(Exception):
    """Something about a lab that a person can mend."""


def ring(hosts):
    return [(f"h{i}.p0", f"h{(i + 1) % hosts}.p1") for i in range(hosts)]


def path(hosts):
    return [(f"h{i}.p0", f"h{i + 1}.p1") for i in range(hosts - 1)]


# Each shape: the number of hosts and the cables. An end without a port is a switch.
SHAPES = {
    "pair": (2, [("h0.p0", "h1.p0")]),
    "triangle": (3, ring(3)),
    "ring3": (3, ring(3)),
    "ring4": (4, ring(4)),
    "ring8": (8, ring(8)),
    "path3": (3, path(3)),
    "path4": (4, path(4)),
    "switch4": (4, [(f"h{i}.p0", "s0") for i in range(4)]),
    # A ring of four in which the last cable went to the wrong host.
    "tail4": (4, [*ring(3), ("h2.p2", "h3.p1")]),
}


def ip(*words, namespace=None, limit=COMMAND_LIMIT_S, stdin=None):
    """Runs `ip`, in a namespace if one is named; what it printed."""
    command = ["ip", *(("-n", namespace) if namespace else ()), *map(str, words)]
    try:
        done = subprocess.run(command, input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=limit, check=False)
    except FileNotFoundError:
        raise LabError("there is no `ip` here; install iproute2") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {limit:g} s") from None
    if done.returncode:
        hint = "; a lab needs root" if os.geteuid() else ""
        raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}{hint}")
    return done.stdout


class Lab:
    """One lab, by its name. Usable with `with`: comes up at the start, is gone at the end."""

    def __init__(self, name="lab", shape="ring4", bare=False, spare_ports=False):
        if not NAME.fullmatch(name):
            raise LabError(f"{name!r} is no name of a lab: at most 16 of a-z, 0-9 and _, such as ring_a")
        if shape not in SHAPES:
            raise LabError(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
        self.name, self.shape, self.bare, self.spare_ports = name, shape, bare, spare_ports
        self.folder = RUN / f"railweave-lab-{name}"
        self.state_file = self.folder / "state.json"
        self.state = None

    @classmethod
    def open(cls, name="lab"):
        """A lab that is up."""
        lab = cls(name)
        lab.state = lab._read()
        if lab.state is None:
            raise LabError(f"there is no lab {name!r}; `lab/netns up ring4 --name {name}` makes one")
        lab.shape, lab.bare, lab.spare_ports = (lab.state[key] for key in ("shape", "bare", "spare_ports"))
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

    # Names and addresses: all of them follow from the shape.

    @property
    def hosts(self):
        return [f"h{i}" for i in range(SHAPES[self.shape][0])]

    @property
    def cables(self):
        return SHAPES[self.shape][1]

    def namespace(self, host):
        return f"rw-{self.name}-{host}"

    def namespaces(self):
        return [self.namespace(one) for one in ("wires", "mgmt", *self.hosts)]

    def reach(self, host):
        """How Railweave gets to a host."""
        return f"netns:{self.namespace(host)}"

    def management(self, host):
        """A host's address on the management network."""
        return f"192.168.77.{10 + self.hosts.index(host)}"

    def ports(self):
        """Each port `h0.p0`, and the wire it is plugged into: a cable's number, a switch's name, or none."""
        wires = {}
        for number, (a, b) in enumerate(self.cables):
            wires[a] = number if "." in b else b
            if "." in b:
                wires[b] = number
        if self.spare_ports:
            for host in self.hosts:
                for port in ("p0", "p1"):
                    wires.setdefault(f"{host}.{port}", None)
        return dict(sorted(wires.items()))

    def address(self, port, function):
        """The address of a function: a /24 for each cable and function, as on GB10 clusters."""
        wire = self.ports()[port]
        if wire is None:
            return None
        if isinstance(wire, str):
            return f"10.10.{function}.{1 + self.hosts.index(port.split('.')[0])}/24"
        end = 1 if self.cables[wire][0] == port else 2
        return f"10.10.{wire * FUNCTIONS + function}.{end}/24"

    @staticmethod
    def mac(port, function):
        host, name = port.split(".")
        return f"02:72:77:{int(host[1:]):02x}:{int(name[1:]):02x}:{function:02x}"

    def function(self, text):
        """`h0.p0.1`: its namespace, netdev, port and number."""
        match = re.fullmatch(r"(h\d+)\.(p\d+)\.(\d)", text)
        port = match and f"{match[1]}.{match[2]}"
        if not match or port not in self.ports() or int(match[3]) >= FUNCTIONS:
            raise LabError(f"{text!r} is no function of this lab; write HOST.PORT.NUMBER, such as h0.p0.1")
        return self.namespace(match[1]), f"{match[2]}f{match[3]}", port, int(match[3])

    def cable(self, text):
        """`h0.p0-h1.p1`, or `h0-h1` where that is one cable: its two ends."""
        ends = re.split(r"[-–]", text)
        found = [cable for cable in self.cables if len(ends) == 2 and all(
            any(end in (one, one.split(".")[0]) for end in ends) for one in cable)]
        if len(found) != 1:
            names = ", ".join(f"{a}-{b}" for a, b in self.cables)
            raise LabError(f"{text!r} is {'no' if not found else 'more than one'} cable of this lab; there are {names}")
        return found[0]

    # Up and down.

    def up(self):
        """Builds the lab; one of the same name is taken down first."""
        with self._lock():
            self._down()
            strangers = [name for name in self._present() if not self._ours(name)]
            if strangers:
                raise LabError(f"{', '.join(strangers)}: there already, and no lab made it; choose another --name, "
                               f"or remove it: ip netns del {strangers[0]}")
            self.state = {"schema": SCHEMA, "name": self.name, "shape": self.shape, "bare": self.bare,
                          "spare_ports": self.spare_ports, "token": secrets.token_hex(16), "faults": []}
            # Before the first namespace, so that a crash leaves nothing that `down` does not know.
            self._write()
            try:
                self._build()
            except BaseException:
                self._down()
                raise

    def _build(self):
        for name in self.namespaces():
            ip("netns", "add", name)
            ip("link", "set", "lo", "alias", f"railweave-lab {self.name}", namespace=name)
            # Addresses can be used at once, and no host passes packets on.
            self.settings(name, {"net/ipv6/conf/default/accept_dad": 0, "net/ipv6/conf/all/accept_dad": 0,
                                 "net/ipv4/ip_forward": 0})
        wires, mgmt = self.namespace("wires"), self.namespace("mgmt")
        self.settings(wires, {"net/ipv6/conf/default/disable_ipv6": 1})
        for name in (wires, mgmt):
            ip("link", "set", "lo", "up", namespace=name)
        bridges, plugs = {}, []
        for number, (a, b) in enumerate(self.cables):
            wire = f"c{number}" if "." in b else b
            for function in range(FUNCTIONS):
                bridge = f"{wire}f{function}"
                if bridge not in bridges:
                    bridges[bridge] = f"link add {bridge} mtu {MTU_BYTES} type bridge mcast_snooping 0"
                    plugs.append(f"link set {bridge} up")
                for port in (end for end in (a, b) if "." in end):
                    plug = f"{port.replace('.', '')}f{function}"
                    plugs.append(f"link set {plug} master {bridge}")
                    plugs.append(f"link set {plug} up")
        self._batch(wires, bridges.values())
        self._batch(mgmt, ["link add br0 type bridge", "address add 192.168.77.1/24 dev br0", "link set br0 up"])
        for host in self.hosts:
            self._batch(self.namespace(host), self._host(host))
        self._batch(wires, plugs)
        self._batch(mgmt, [f"link set {host} {what}" for host in self.hosts for what in ("master br0", "up")])
        self._await_carriers()

    def _host(self, host):
        wires, mgmt = self.namespace("wires"), self.namespace("mgmt")
        number = self.hosts.index(host)
        lines = ["link set lo up",
                 f"link add mgmt address 02:72:77:ff:00:{number:02x} mtu {MANAGEMENT_MTU_BYTES} type veth "
                 f"peer name {host} netns {mgmt}",
                 "link set mgmt up", f"address add {self.management(host)}/24 dev mgmt"]
        for port in self.ports():
            if port.split(".")[0] != host:
                continue
            for function in range(FUNCTIONS):
                netdev, plug = f"{port.split('.')[1]}f{function}", f"{port.replace('.', '')}f{function}"
                lines.append(f"link add {netdev} address {self.mac(port, function)} mtu {MTU_BYTES} type veth "
                             f"peer name {plug} mtu {MTU_BYTES} netns {wires}")
                lines.append(f"link set {netdev} up")
                address = self.address(port, function)
                if address and not self.bare:
                    lines.append(f"address add {address} dev {netdev}")
        return lines

    def _await_carriers(self):
        deadline = time.monotonic() + COMMAND_LIMIT_S
        cabled = {port for port, wire in self.ports().items() if wire is not None}
        while True:
            dark = [f"{host}.{link['ifname']}" for host in self.hosts
                    for link in json.loads(ip("-j", "link", namespace=self.namespace(host)))
                    if f"{host}.{link['ifname'].split('f')[0]}" in cabled and "LOWER_UP" not in link["flags"]]
            if not dark:
                return
            if time.monotonic() > deadline:
                raise LabError(f"no carrier on {', '.join(dark)}")
            time.sleep(0.02)

    def down(self):
        """Ends what was started in the lab and removes it, if it is there. Returns what was removed."""
        with self._lock():
            return self._down()

    def _down(self):
        self.state = self._read()
        mine = [name for name in self._present() if self._ours(name)]
        self._end_processes(mine)
        for name in mine:
            ip("netns", "del", name)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.state = None
        return mine

    def _present(self):
        names = re.compile(rf"rw-{re.escape(self.name)}-(?:h\d+|wires|mgmt)")
        with contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in NETNS.iterdir() if names.fullmatch(entry.name))
        return []

    def _ours(self, name):
        """Whether a lab of this name made it: its state says so, or the namespace itself."""
        if self._read() is not None:
            return True
        try:
            links = json.loads(ip("-j", "link", "show", "lo", namespace=name))
        except (LabError, ValueError):
            return False
        return any(link.get("ifalias") == f"railweave-lab {self.name}" for link in links)

    def _end_processes(self, namespaces):
        """Ends the processes that were started in the lab: asks them, then kills them, each by its id."""
        for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
            left = self.processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = self.processes()
            if not left:
                break
        foreign = [pid for name in namespaces for pid in ip("netns", "pids", name).split()
                   if int(pid) != os.getpid() and pid not in map(str, self.processes())]
        if foreign:
            raise LabError(f"processes {', '.join(foreign)} run in this lab's namespaces and the lab did not start "
                           "them; end them first")

    def processes(self):
        """Ids of the processes that were started in the lab and still run, and of their descendants."""
        if self.state is None:
            return []
        mark = f"{MARK}={self.name}:{self.state['token']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX" and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    # Commands in hosts.

    def environment(self, env=None):
        return {**os.environ, MARK: f"{self.name}:{self.state['token']}", **(env or {})}

    def command(self, host, *words):
        if host not in self.hosts and host not in ("mgmt", "wires"):
            raise LabError(f"{host!r} is no host of this lab; there are {', '.join(self.hosts)}")
        return ["ip", "netns", "exec", self.namespace(host), *map(str, words)]

    def popen(self, host, *words, env=None, **options):
        """Starts a command in a host. The lab ends it when it goes down."""
        return subprocess.Popen(self.command(host, *words), env=self.environment(env), **options)

    def run(self, host, *words, limit=COMMAND_LIMIT_S, env=None):
        """Runs a command in a host to its end."""
        return subprocess.run(self.command(host, *words), env=self.environment(env), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=limit, check=False)

    # Faults. Each notes how it is undone.

    def pull(self, cable):
        """Pulls a cable: both ends stay up and lose their carrier."""
        for end in self._plugs(cable):
            ip("link", "set", end, "down", namespace=self.namespace("wires"))
        self._note(f"cable-pull {cable}", None)

    def mend(self, cable):
        """Plugs a cable in again."""
        for end in self._plugs(cable):
            ip("link", "set", end, "up", namespace=self.namespace("wires"))
        self._forget(lambda fault: fault["what"] == f"cable-pull {cable}")

    def _plugs(self, cable):
        return [f"{port.replace('.', '')}f{function}" for port in self.cable(cable) if "." in port
                for function in range(FUNCTIONS)]

    def set_mtu(self, function, bytes_):
        """Gives one function another MTU."""
        namespace, netdev, _, _ = self.function(function)
        before = json.loads(ip("-j", "link", "show", netdev, namespace=namespace))[0]["mtu"]
        ip("link", "set", netdev, "mtu", bytes_, namespace=namespace)
        self._note(f"mtu {function} {bytes_}", [[namespace, f"link set {netdev} mtu {before}"]])

    def duplicate_address(self, function, other):
        """Gives one function the address of another, as a copied configuration does."""
        namespace, netdev, _, _ = self.function(function)
        own, taken = self.address_now(function), self.address_now(other)
        if own is None or taken is None:
            raise LabError(f"{function if own is None else other} has no address")
        routes = self._routes_of(namespace, netdev)
        ip("address", "del", own, "dev", netdev, namespace=namespace)
        ip("address", "add", taken, "dev", netdev, namespace=namespace)
        self._note(f"duplicate-address {function} {other}", [
            [namespace, f"address del {taken} dev {netdev}"], [namespace, f"address add {own} dev {netdev}"],
            *([namespace, f"route replace {route}"] for route in routes)])

    def address_now(self, function):
        """The IPv4 address that a function has, or none."""
        namespace, netdev, _, _ = self.function(function)
        links = json.loads(ip("-j", "-4", "address", "show", netdev, namespace=namespace))
        return next((f"{one['local']}/{one['prefixlen']}" for link in links for one in link.get("addr_info", [])), None)

    def _routes_of(self, namespace, netdev):
        """The routes of a netdev that go when its address goes, as they are added."""
        text = ip("route", "show", "dev", netdev, namespace=namespace)
        return [f"{as_command(line)} dev {netdev}" for line in text.splitlines() if "proto kernel" not in line]

    def remove_route(self, host, destination):
        """Removes a route of a host."""
        namespace = self.namespace(host)
        found = ip("route", "show", destination, namespace=namespace).strip().splitlines()
        if not found:
            raise LabError(f"{host} has no route to {destination}")
        ip("route", "del", *as_command(found[0]).split(), namespace=namespace)
        self._note(f"route-remove {host} {destination}", [[namespace, f"route replace {as_command(found[0])}"]])

    def wrong_neighbour(self, host, address, mac="02:72:77:de:ad:00"):
        """Gives a host a wrong hardware address for a neighbour, for good."""
        namespace = self.namespace(host)
        entries = json.loads(ip("-j", "neigh", "show", address, namespace=namespace) or "[]")
        netdev = (entries or json.loads(ip("-j", "route", "get", address, namespace=namespace)))[0]["dev"]
        ip("neigh", "replace", address, "lladdr", mac, "dev", netdev, "nud", "permanent", namespace=namespace)
        before = next((entry for entry in entries if "PERMANENT" in entry.get("state", [])), None)
        undo = f"neigh del {address} dev {netdev}"
        if before:
            owner = f" protocol {before['protocol']}" if "protocol" in before else ""
            undo = f"neigh replace {address} lladdr {before['lladdr']} dev {netdev} nud permanent{owner}"
        self._note(f"neighbour-wrong {host} {address}", [[namespace, undo]])

    def mend_all(self):
        """Undoes every fault, the latest first. Returns what was undone."""
        undone = []
        for fault in reversed(self.state["faults"][:]):
            if fault["undo"] is None:
                self.mend(fault["what"].split()[1])
            else:
                for namespace, line in fault["undo"]:
                    ip(*line.split(), namespace=namespace)
                self._forget(lambda one, gone=fault: one is gone)
            undone.append(fault["what"])
        return undone

    # State.

    def _note(self, what, undo):
        if not any(fault["what"] == what for fault in self.state["faults"]):
            self.state["faults"].append({"what": what, "undo": undo})
            self._write()

    def _forget(self, which):
        self.state["faults"] = [fault for fault in self.state["faults"] if not which(fault)]
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
        if os.geteuid():
            raise LabError("a lab makes network namespaces; run this as root")
        with open(RUN / "lock" / f"railweave-lab-{self.name}", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LabError(f"another command is building or removing the lab {self.name!r}") from None
            yield

    @staticmethod
    def settings(namespace, values):
        """Sets kernel settings in a namespace; one the kernel does not have is left."""
        text = " ".join(f"[ ! -e /proc/sys/{key} ] || echo {value} > /proc/sys/{key};" for key, value in values.items())
        done = subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", text], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
        if done.returncode:
            raise LabError(f"cannot set up {namespace}: {done.stderr.strip()}")

    @staticmethod
    def _batch(namespace, lines):
        ip("-batch", "-", namespace=namespace, stdin="".join(f"{line}\n" for line in lines))

    @staticmethod
    def settle(condition, limit=5.0):
        """Waits until a condition holds; whether it did."""
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def as_command(route):
    """A route as `ip route` prints it, without what only it can say."""
    return " ".join(word for word in route.split() if word not in ("linkdown", "dead", "onlink"))


def labs():
    """Names of the labs that are up."""
    return sorted(folder.name.removeprefix("railweave-lab-") for folder in RUN.glob("railweave-lab-*")
                  if (folder / "state.json").exists())
