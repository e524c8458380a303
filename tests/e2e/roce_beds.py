"""The lab itself: its beds, their names and packets, their faults, and that nothing is left of them."""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server import ROOT

sys.path.insert(0, str(ROOT / "lab"))
from lab_roce import PREFIX, RUN, Lab, LabError, labs  # noqa: E402

NAME = f"e2e{os.getpid() % 10_000}"
# Where tests in a host find the IPv4-mapped GID: after the one of the link-local address.
GID = "1"
PORTS = itertools.count(18_000)


def carriers(lab, host, of):
    script = 'for netdev; do cat "/sys/class/net/$netdev/carrier" "/sys/class/net/$netdev/operstate"; done'
    netdevs = [row[1] for row in lab.netdevs(of)]
    words = lab.run(host, "sh", "-c", script, "sh", *netdevs, directory="/").stdout.split()
    return dict(zip(netdevs, words[::2], strict=True))


def writes(lab, client, client_device, server, server_device, limit=40, size=8, count=200):
    """Writes from one device into the memory of another and back: whether all arrived, and what was said."""
    port = str(next(PORTS))
    words = ("-x", GID, "-F", "-s", str(size), "-n", str(count), "-p", port)
    listening = lab.start(server, "ib_write_lat", "-d", server_device, *words, limit=limit, directory="/")
    wait = f"for _ in $(seq 200); do ss -ltn | grep -q ':{port} ' && exit 0; sleep 0.1; done; exit 1"
    lab.run(server, "sh", "-c", wait, limit=limit, directory="/")
    done = lab.run(client, "ib_write_lat", "-d", client_device, *words, lab.management(server), limit=limit,
                   directory="/")
    if done.returncode:
        listening.end(kill=True)
    return done.returncode == 0 and listening.wait(limit + 15) == 0, (done.stdout + done.stderr)[-300:]


def packets(file):
    done = subprocess.run(["tcpdump", "-n", "-e", "-r", file, "udp", "port", "4791"], capture_output=True, text=True,
                          check=False)
    return done.stdout.splitlines()


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def left():
    return [name for name in labs() if name == NAME] + [str(path) for path in RUN.glob(f"{PREFIX}{NAME}/*")]


def commands(lab, checks):
    done = lab.run("h0", "sh", "-c", 'cat; echo "$ROCE_HOST $1"; echo bad >&2; exit 7', "sh", "a 'b\" $c",
                   stdin=b"x" * 100_000)
    checks.check("a command's words, input, output and exit code come through",
                 (done.stdout, done.stderr, done.returncode) == ("x" * 100_000 + "h0 a 'b\" $c\n", "bad\n", 7),
                 f"{done.stdout[-80:]!r} {done.stderr!r} {done.returncode}")
    results = lab.run_all("sh", "-c", "echo $ROCE_HOST: $ROCE_DEVICES")
    checks.check("all hosts run a command at once",
                 all(results[host].stdout.startswith(f"{host}: roce_{host}p") for host in lab.hosts))
    began = time.monotonic()
    done = lab.run("h0", "sh", "-c", "trap '' TERM; sleep 300 & wait; sleep 300", limit=1)
    checks.check("one that ignores its limit is ended", done.returncode == 124 and time.monotonic() - began < 20)
    with tempfile.TemporaryDirectory() as folder:
        script, said = Path(folder) / "built", []
        for number in range(3):
            new = Path(folder) / "new"
            new.write_text("#!/bin/sh\n" + "true\n" * number + f"echo build {number}\n")
            new.chmod(0o755)
            new.replace(script)
            said.append(lab.run("h0", script).stdout)
        checks.check("what was built anew is what runs", said == [f"build {number}\n" for number in range(3)], said)
    done = lab.run("h0", "touch", ROOT / "written-by-the-lab")
    checks.check("a host cannot write to this machine's root", done.returncode != 0 and "Read-only" in done.stderr)


def one_machine(checks):
    with Lab(NAME, "ring4") as lab:
        listed = lab.run("h0", "ibv_devices").stdout
        checks.check("four hosts have sixteen devices",
                     len(lab.netdevs()) == 16 and listed.count("roce_") == 16)
        devices = [row[4] for row in lab.netdevs()]
        script = f'for one; do cat "/sys/class/infiniband/$one/ports/1/gids/{GID}"; done'
        found = lab.run("h0", "sh", "-c", script, "sh", *devices, directory="/").stdout.split()
        mapped = ["0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(
            *map(int, row[3].split("/")[0].split("."))) for row in lab.netdevs()]
        checks.check("each has the GID of its address", found == mapped, "" if found == mapped else found)
        commands(lab, checks)

        ok, said = writes(lab, "h0", "roce_h0p0f0", "h1", "roce_h1p1f0")
        checks.check("a queue pair carries bytes over a cable", ok, "" if ok else said)
        with lab.capture(Path(lab.folder) / "seen", hosts=["h2", "h3"]) as folder:
            ok, said = writes(lab, "h2", "roce_h2p0f1", "h3", "roce_h3p1f1")
        counts = {file.stem: len(packets(file)) for file in folder.glob("*.pcap")}
        both = counts.pop("h2p0f1", 0), counts.pop("h3p1f1", 0)
        # 200 writes in each direction, and their acknowledgements, some of which may come in one.
        checks.check("captures at both ends see them, and no other netdev does",
                     ok and min(both) > 400 and len(counts) == 6 and not any(counts.values()), (both, counts))

        lab.pull("h0-h1")
        dark = {netdev for host in lab.hosts for netdev, carrier in carriers(lab, "h0", host).items() if carrier != "1"}
        checks.check("a pulled cable takes the carrier from both ends and from no other",
                     dark == {"h0p0f0", "h0p0f1", "h1p1f0", "h1p1f1"}, dark)
        state = lab.run("h0", "rdma", "link", "show", "roce_h0p0f0/1").stdout
        checks.check("and their devices' ports are down", "state DOWN" in state, state)
        lab.mend("h0-h1")
        ok, said = writes(lab, "h0", "roce_h0p0f0", "h1", "roce_h1p1f0")
        checks.check("a mended cable carries again", ok, "" if ok else said)

        lab.wire("h3>h0", "loss", "100%")
        ok, _ = writes(lab, "h3", "roce_h3p0f0", "h0", "roce_h0p1f0", limit=5)
        other, said = writes(lab, "h1", "roce_h1p0f0", "h2", "roce_h2p1f0")
        checks.check("a cable that loses all in one direction carries nothing, and the others carry on",
                     not ok and other, "" if other else said)
        lab.wire_mend("h3>h0")
        lab.wire("h3-h0", "delay", "20ms")
        began = time.monotonic()
        ok, said = writes(lab, "h3", "roce_h3p0f0", "h0", "roce_h0p1f0", count=50)
        checks.check("a slow cable is slow", ok and time.monotonic() - began > 50 * 0.04, "" if ok else said)
        lab.mend_all()

        victim = lab.start("h2", "sleep", "300")
        bystander = lab.start("h3", "sleep", "300")
        lab.settle(lambda: (bystander.folder / "pid").exists())
        lab.kill("h2")
        checks.check("a killed host's processes end, and those of others do not",
                     victim.wait(20) == 137 and bystander.poll() is None)
        dark = {netdev for netdev, carrier in carriers(lab, "h0", "h1").items() if carrier != "1"}
        checks.check("and its neighbours lose their carrier", dark == {"h1p0f0", "h1p0f1"}, dark)
        lab.boot("h2")
        ok, said = writes(lab, "h1", "roce_h1p0f0", "h2", "roce_h2p1f0")
        checks.check("a host that was started again carries", ok, "" if ok else said)
    checks.check("nothing is left", not left(), left() or "")


def forward(lab, checks):
    """A path from h0 over h1 to h2 and back, by rules on the middle host alone."""
    rows = {row[1]: row for row in lab.netdevs()}

    def address(netdev):
        return rows[netdev][3].split("/")[0]

    ends = ("h0p0f0", "h1p1f0", "h1p0f0", "h2p1f0")
    for near, middle, _, far in (ends, ends[::-1]):
        done = lab.run(rows[near][0], "ip", "route", "add", f"{address(far)}/32", "via", address(middle), "dev", near,
                       "src", address(near), directory="/")
        checks.check(f"{near} routes by its neighbour", done.returncode == 0, done.stderr)
    for _, into, out, far in (ends, ends[::-1]):
        done = lab.run("h1", "sh", "-c",
                       f"tc qdisc add dev {into} clsact && tc filter add dev {into} ingress protocol ip flower "
                       f"ip_proto udp dst_port 4791 dst_ip {address(far)} action pedit ex munge eth dst set "
                       f"{rows[far][2]} munge eth src set {rows[out][2]} pipe action mirred egress redirect dev {out}",
                       directory="/")
        checks.check(f"a rule at {into} passes packets on", done.returncode == 0, done.stderr)
    return ends


def many_machines(checks):
    with Lab(NAME, "path3", "many") as lab:
        kernels = {host: done.stdout for host, done in
                   lab.run_all("cat", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname").items()}
        checks.check("three hosts are three machines",
                     len(set(kernels.values())) == 3 and all(kernels[host].endswith(f"{host}\n") for host in lab.hosts))
        reached = lab.run("h0", "ping", "-c", "1", "-W", "5", "-n", lab.management("h2"))
        checks.check("they meet on the management network", reached.returncode == 0)
        ok, said = writes(lab, "h0", "roce_h0p0f1", "h1", "roce_h1p1f1", size=4096, count=100)
        checks.check("a queue pair carries bytes between machines", ok, "" if ok else said)

        ends = forward(lab, checks)
        with lab.capture(Path(lab.folder) / "seen", hosts=["h1"]) as folder:
            ok, said = writes(lab, "h0", "roce_h0p0f0", "h2", "roce_h2p1f0", count=100)
        counts = [len(packets(folder / f"{netdev}.pcap")) for netdev in ends[1:3]]
        checks.check("a distant pair writes over the middle host, whose two netdevs see it in and out",
                     ok and min(counts) > 300, counts if ok else said)
        counted = lab.run("h1", "sh", "-c", "awk '/^Ip: [0-9]/ { print $7 }' /proc/net/snmp").stdout
        checks.check("and whose kernel forwarded nothing", counted == "0\n", counted)

        waiting = lab.start("h1", "sleep", "300")
        lab.kill("h1")
        checks.check("a killed host's commands end", waiting.wait(5) == 137)
        dark = {**carriers(lab, "h0", "h0"), **carriers(lab, "h2", "h2")}
        checks.check("its neighbours lose their carrier", set(dark.values()) == {"0"}, dark)
        reached = lab.run("h0", "ping", "-c", "1", "-W", "5", "-n", lab.management("h2"))
        checks.check("and still meet on the management network", reached.returncode == 0)
        try:
            lab.run("h1", "true")
            refused = ""
        except LabError as error:
            refused = str(error)
        checks.check("a dead host says so", refused == "h1 is down", refused)
        lab.boot("h1")
        ok, said = writes(lab, "h0", "roce_h0p0f0", "h1", "roce_h1p1f0", count=50)
        checks.check("a host that was started again carries", ok, "" if ok else said)

        lab.freeze("h2")
        frozen = lab.start("h2", "true")
        time.sleep(2)
        checks.check("a frozen host does nothing", frozen.poll() is None)
        lab.thaw("h2")
        checks.check("and goes on where it was", frozen.wait(20) == 0)
    checks.check("nothing is left", not left(), left() or "")


def endings(checks):
    tool = ROOT / "lab" / "roce"
    up = subprocess.run([tool, "up", "pair", "--name", NAME], capture_output=True, text=True, timeout=300, check=False)
    checks.check("`up` leaves a lab", up.returncode == 0 and NAME in labs(), up.stderr)
    done = subprocess.run([tool, "run", "--name", NAME, "--", "sh", "-c", "echo $ROCE_HOST; exit 3"],
                          capture_output=True, text=True, timeout=60, check=False)
    checks.check("`run` prints each host's lines and ends with an exit code of theirs",
                 done.returncode == 3 and sorted(done.stdout.splitlines()) == ["h0| h0", "h1| h1"], done)
    running = Lab.open(NAME).processes()
    stranger = subprocess.Popen(["sleep", "300"])
    down = subprocess.run([tool, "down", "--name", NAME], capture_output=True, text=True, timeout=60, check=False)
    checks.check("`down` ends its machines and nothing else",
                 down.returncode == 0 and running and not any(map(runs, running)) and stranger.poll() is None, running)
    stranger.kill()
    stranger.wait()
    checks.check("a second `down` has nothing to do", Lab(NAME).down() == [])

    # A crash in the middle of building.
    pid = os.fork()
    if pid == 0:
        broken = Lab(NAME, "pair", "many")
        broken._network = lambda _: os._exit(9)
        broken.up()
    os.waitpid(pid, 0)
    lab = Lab.open(NAME)
    running = lab.processes()
    checks.check("a crash while building leaves machines", len(running) == 3, running)
    Lab(NAME).down()
    checks.check("which `down` ends", not any(map(runs, running)) and not left(), left() or "")
