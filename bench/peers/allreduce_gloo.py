"""All-reduce (f32, sum) of PyTorch's gloo backend over 127.0.0.1, measured as
`railweave bench allreduce` measures its own: barrier, timed call, slowest rank.

Usage: allreduce_gloo.py LABEL RANKS SECONDS BYTES[,BYTES...]
Prints for each size: label,ranks,bytes,calls,min_us,p50_us,p99_us
"""

import os
import socket
import subprocess
import sys
import time

CALLS_MAX = 20_000
LARGE = 1 << 20


def measure(torch, dist, label, rank, ranks, seconds, size):
    count = size // 4
    source = (torch.arange(count) % 7 + 1).float() * (rank + 1)
    warm, times, end = (3 if size > LARGE else 20), [], 0.0
    stop = torch.zeros(1)
    while not stop.item():
        vector = source.clone()  # the sum replaces it
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(vector)
        took = time.perf_counter() - begun
        if warm:
            warm -= 1
            end = time.perf_counter() + seconds
            continue
        times.append(took)
        if size > LARGE or len(times) % 10 == 0:
            stop[0] = float(time.perf_counter() > end or len(times) >= CALLS_MAX)
            dist.broadcast(stop, 0)
    expected = (torch.arange(count) % 7 + 1).float() * (ranks * (ranks + 1) // 2)
    if not torch.equal(vector, expected):
        sys.exit("allreduce_gloo: a sum is wrong")
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.reduce(slowest, 0, op=dist.ReduceOp.MAX)
    if rank == 0:
        in_order = [value * 1e6 for value in sorted(slowest.tolist())]
        p50, p99 = in_order[len(in_order) // 2], in_order[int(len(in_order) * 0.99)]
        row = f"{label},{ranks},{size},{len(in_order)},{in_order[0]:.3f},{p50:.3f},{p99:.3f}"
        print(row, flush=True)


def be_rank(label, rank, ranks, seconds, sizes):
    if ranks <= os.cpu_count():
        os.sched_setaffinity(0, {rank})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        measure(torch, dist, label, rank, ranks, seconds, size)
    dist.destroy_process_group()


def main():
    label, ranks, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    sizes = [int(size) for size in sys.argv[4].split(",")]
    if "RANK" in os.environ:
        be_rank(label, int(os.environ["RANK"]), ranks, seconds, sizes)
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen([sys.executable, "-W", "ignore", *sys.argv],
                         env=os.environ | shared | {"RANK": str(rank)})
        for rank in range(ranks)
    ]
    codes = [worker.wait() for worker in workers]
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    sys.exit(main())
