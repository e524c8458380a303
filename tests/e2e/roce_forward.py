"""Paths that hosts between pass on, on a ring of four machines: rules from `railweave apply`, bytes by real queue pairs."""

import time

from roce_room import TAG_LABEL, Room, frames

# How long a room is watched for packets that go round: such a packet passes a host thousands of times a second.
STILL_S = 2.0


def refusals(lab, checks):
    """A link in software takes no filter into hardware, and whoever has one is told what to set."""
    done = lab.run("h1", "sh", "-c",
                   "tc qdisc replace dev h1p0f0 clsact && tc filter add dev h1p0f0 ingress protocol 0x88b5 pref 18801 "
                   "handle 0x1 flower skip_sw dst_mac 02:72:77:01:00:00 action mirred egress redirect dev h1p1f0; "
                   "code=$?; tc qdisc del dev h1p0f0 clsact; exit $code", directory="/")
    checks.check("the kernel refuses a filter for hardware on a link in software",
                 done.returncode == 2 and "Operation not supported" in done.stderr, (done.returncode, done.stderr[:90]))
    with Room(lab, marker=None) as room:
        said = room.everywhere("apply", "--diff", hosts=["h1"])["h1"]
        checks.check("without the setting the plan names it", said.returncode and 'marker = "tc"' in said.stderr,
                     said.stderr.strip()[-200:])


def put_rules(room, checks, what):
    began = time.monotonic()
    done = room.apply()
    wrong = {host: one.stderr or one.stdout for host, one in done.items() if one.returncode}
    # Railweave itself reads every host again, and says so only if nothing is left to change.
    wrong.update({host: one.stdout for host, one in done.items() if "in place" not in one.stdout})
    return checks.check(f"{what}: rules are applied on four hosts, and are in place", not wrong,
                        wrong or f"{time.monotonic() - began:.1f} s")


def carries(room, checks, what, label):
    """Every forwarded rail carries bytes both ways, over its middle host's rules and not its kernel's routing."""
    before = {host: room.forwarded_datagrams(host) for host in room.lab.hosts}
    rails = [rail for rail in room.rails() if rail[0] < rail[1]]
    checks.check(f"{what}: two distant pairs have two forwarded rails each", len(rails) == 4, len(rails))
    for near, far, number, crossings in rails:
        middle = crossings[0]["into"]["host"]
        counted = room.rules(middle)
        said = room.probe(crossings, label)
        moved = {place: packets - counted.get(place, 0) for place, packets in room.rules(middle).items()
                 if place[1] == "ingress" and packets > counted.get(place, 0)}
        ok = all(one["status"] == 0 and one["arrived"] for one in said)
        checks.check(f"{what}: path {near}-{far} rail {number} carries bytes over {middle}, whose two rules count them",
                     ok and len(moved) == 2, moved if ok else said)
    after = {host: room.forwarded_datagrams(host) for host in room.lab.hosts}
    checks.check(f"{what}: no kernel routed a packet", before == after == dict.fromkeys(before, 0), after)


def captured(room, checks, what, label):
    """The middle host's packets: in with the tag, to its own MAC; out as IPv4, to the far one's."""
    near, far, number, crossings = next(rail for rail in room.rails() if rail[0] < rail[1])
    first, last = crossings[0], crossings[-1]
    middle = first["into"]["host"]
    with room.lab.capture(f"{room.home.name}/seen", hosts=[middle]) as folder:
        said = room.probe(crossings, label, count=10)
    into, out = folder / f"{first['into']['netdev']}.pcap", folder / f"{last['out']['netdev']}.pcap"
    counts = {
        "in": frames(into, f"ether proto 0x88b5 and ether dst {first['into']['mac']} and ether src {first['out']['mac']}"),
        "out": frames(out, f"udp port 4791 and ether dst {last['into']['mac']}"),
        "acks in": frames(out, f"ether proto 0x88b5 and ether dst {last['out']['mac']}"),
        "acks out": frames(into, f"udp port 4791 and ether dst {first['out']['mac']}"),
    }
    # Ten writes of four packets; an acknowledgement may stand for several.
    ok = all(one["status"] == 0 for one in said)
    checks.check(f"{what}: a capture on {middle} shows each packet of {near}-{far} rail {number} in and out, its MAC "
                 "rewritten", ok and counts["in"] == counts["out"] >= 40 and counts["acks in"] == counts["acks out"] > 0,
                 counts if ok else said)


def stands_still(room, checks, what):
    """Nothing goes round: when traffic is over, no rule of any host counts on."""
    time.sleep(0.5)
    before = room.all_rules()
    time.sleep(STILL_S)
    after = room.all_rules()
    checks.check(f"{what}: when traffic is over, all {len(after)} filters' counters stand still",
                 before == after and len(after) == 16 and any(after.values()),
                 {place: after[place] - before.get(place, 0) for place in after if after[place] != before.get(place)})


def untagged_fails(room, checks):
    """By source port, a queue pair with another label is not passed on: the control of all of the above."""
    near, far, number, crossings = room.rails()[0]
    said = room.probe(crossings, label=1, count=1, timeout=12, retry=1)
    checks.check("by source port: a queue pair with another flow label is not passed on",
                 {one["status"] for one in said} == {12}, said)


def rule_deleted(room, checks):
    """Without the middle's rule the sender's retries run out."""
    near, far, number, crossings = room.rails()[0]
    into = crossings[0]["into"]
    room.lab.run(into["host"], "tc", "filter", "del", "dev", into["netdev"], "ingress", directory="/")
    said = room.probe(crossings, count=1, timeout=12, retry=1)
    checks.check("a deleted rule ends in exhausted retries", said[0]["status"] == 12, said)


def checked(room, checks, what):
    """The doctor finds nothing in what all hosts read of themselves."""
    file = room.bundles()
    report = room.outside("check", "--json", str(file))
    found = [line for line in report.stdout.splitlines() if '"code":' in line]
    codes = sorted({line.split('"')[3] for line in found})
    about = [code for code in codes if code.startswith(("RW-RTE", "RW-FWD"))]
    checks.check(f"{what}: check finds nothing wrong with routes and forwarding",
                 report.returncode in (0, 1) and not about, about or report.stderr[-200:] or f"others: {codes}")
    return file


def taken_back(room, checks):
    done = room.everywhere("apply", "--down", "--yes-live")
    wrong = {host: one.stderr for host, one in done.items() if one.returncode}
    left = room.all_rules()
    checks.check("down takes back every filter", not wrong and not left, wrong or left or "")


def forwarding(lab, checks):
    """All of it, for both kinds of tag."""
    refusals(lab, checks)
    with Room(lab) as room:
        if put_rules(room, checks, "by destination"):
            carries(room, checks, "by destination", 0)
            captured(room, checks, "by destination", 0)
            stands_still(room, checks, "by destination")
            checked(room, checks, "by destination")
            rule_deleted(room, checks)
        # This mends the deleted rule too.
        room.describe(tag="source-port")
        if put_rules(room, checks, "by source port"):
            carries(room, checks, "by source port", TAG_LABEL)
            captured(room, checks, "by source port", TAG_LABEL)
            stands_still(room, checks, "by source port")
            untagged_fails(room, checks)
        taken_back(room, checks)
