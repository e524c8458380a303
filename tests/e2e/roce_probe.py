#!/usr/bin/python3
"""One end of a queue pair, for tests in hosts of the lab: bytes written from each end into the other's memory.

perftest of Debian 12 sets no flow label, never gives up (its retry count has no end in soft-RoCE) and polls memory, so
a path that carries nothing hangs it. This ends, and says in one line of JSON what the queue pair said.

Run it at both ends at about the same time: `roce_probe.py --device D --address A --far-address B --listen PORT` and
`roce_probe.py … --connect IP:PORT`. Needs python3-pyverbs.
"""

import argparse
import json
import socket
import sys
import time

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ACCESS = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
GIDS = 16
MEET_LIMIT_S = 60.0


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--address", required=True, help="of this end, by which its GID is found")
    parser.add_argument("--far-address", required=True)
    parser.add_argument("--listen", type=int)
    parser.add_argument("--connect")
    parser.add_argument("--flow-label", type=int, default=0)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long, whatever the count")
    parser.add_argument("--timeout", type=int, default=14, help="4.096 us times 2 to this power")
    parser.add_argument("--retry", type=int, default=5)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one write to complete")
    return parser.parse_args()


def mapped(address):
    """The GID of an IPv4 address, as text."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def index_of(context, gid):
    for index in range(GIDS):
        if str(context.query_gid(1, index)) == gid:
            return index
    raise SystemExit(f"no GID {gid}")


def meet(args):
    deadline = time.monotonic() + MEET_LIMIT_S
    if args.listen:
        with socket.create_server(("", args.listen)) as server:
            server.settimeout(MEET_LIMIT_S)
            peer = server.accept()[0]
    else:
        host, port = args.connect.rsplit(":", 1)
        while True:
            try:
                peer = socket.create_connection((host, int(port)), timeout=MEET_LIMIT_S)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    peer.settimeout(MEET_LIMIT_S + args.seconds + args.limit)
    return peer.makefile("rw")


def swap(peer, mine):
    peer.write(json.dumps(mine) + "\n")
    peer.flush()
    line = peer.readline()
    if not line:
        raise SystemExit("the other end is gone")
    return json.loads(line)


class End:
    def __init__(self, args):
        self.args = args
        self.context = Context(name=args.device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        # The first half is written to by the other end, the second is what is sent.
        self.mr = MR(self.pd, 2 * args.size, ACCESS)
        cap = QPCap(max_send_wr=8, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qp = QP(self.pd, init)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        self.qp.to_init(attr)
        self.sgid_index = index_of(self.context, mapped(args.address))

    def parameters(self):
        return {"qpn": self.qp.qp_num, "rkey": self.mr.rkey, "at": self.mr.buf}

    def connect(self, far):
        args = self.args
        route = GlobalRoute(dgid=GID(mapped(args.far_address)), sgid_index=self.sgid_index,
                            flow_label=args.flow_label, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.dest_qp_num = far["qpn"]
        attr.path_mtu = enums.IBV_MTU_1024
        attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.rq_psn = 0
        self.qp.to_rtr(attr)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic, attr.sq_psn = args.timeout, args.retry, 6, 1, 0
        self.qp.to_rts(attr)
        self.far = far

    def write(self, pattern):
        """One write: its status, or none if it did not complete in time."""
        size = self.args.size
        self.mr.write(bytes([pattern]) * size, size, size)
        wr = SendWR(opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.mr.buf + size, size, self.mr.lkey)])
        wr.set_wr_rdma(self.far["rkey"], self.far["at"])
        self.qp.post_send(wr)
        deadline = time.monotonic() + self.args.limit
        while time.monotonic() < deadline:
            number, completions = self.cq.poll(1)
            if number:
                return completions[0].status
        return None


def main():
    args = arguments()
    peer = meet(args)
    end = End(args)
    end.connect(swap(peer, end.parameters()))
    swap(peer, "connected")
    began, done, status = time.monotonic(), 0, 0
    own = 0xA5 if args.listen else 0x5A
    while status == 0 and (done < args.count or time.monotonic() - began < args.seconds):
        status = end.write(own)
        done += status == 0
    seconds = time.monotonic() - began
    theirs = swap(peer, {"status": status, "pattern": own, "done": done})
    arrived = end.mr.read(args.size, 0) == bytes([theirs["pattern"]]) * args.size
    print(json.dumps({"status": status, "done": done, "seconds": round(seconds, 3), "arrived": arrived,
                      "far_status": theirs["status"]}))
    return 0 if status == 0 and theirs["status"] == 0 and arrived else 1


if __name__ == "__main__":
    sys.exit(main())
