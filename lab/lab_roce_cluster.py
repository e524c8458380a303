"""The cluster file of a lab with RDMA: the hosts, cables and addresses that `railweave` is told."""

import itertools

REACH = ("local", "ssh")


def cluster_file(lab, forward="required", tag="destination", marker="tc", reach="ssh", hosts=None, routes=()):
    """The text of the file. Control connections go over the management network.

    With `reach="ssh"` a host is the machine itself where its own hardware addresses are found, and another one
    elsewhere: so the same file serves in every machine of bed `many`. `hosts` gives another order of ranks, `routes`
    lists `[[route]]` tables as dictionaries. `marker=None` leaves the key out, as on clusters of real NICs.
    """
    if reach not in REACH:
        raise ValueError(f"{reach!r} is not one of {', '.join(REACH)}")
    order = list(hosts or lab.hosts)
    lines = ['schema = "railweave-cluster/1"', f'forward = "{forward}"', f'tag = "{tag}"']
    if marker:
        lines.append(f'marker = "{marker}"')
    lines.append("mtu_bytes = 9000")
    for host in order:
        management = lab.management(host)
        lines += ["", "[[host]]", f'name = "{host}"',
                  f'reach = "{"local" if reach == "local" else f"ssh:{management}"}"', f'control = "{management}"']
        ports = itertools.groupby(lab.netdevs(host), key=lambda row: row[1][len(host):].split("f")[0])
        for port, rows in ports:
            lines += ["", "[[host.port]]", f'name = "{port}"']
            for _, netdev, mac, address, device, _ in rows:
                lines += ["", "[[host.port.function]]", f'mac = "{mac}"', f'address = "{address}"',
                          f'netdev = "{netdev}"', f'rdma = "{device}"']
    for near, far in lab.cables:
        lines += ["", "[[cable]]", f'a = "{near}"', f'b = "{far}"']
    for route in routes:
        lines += ["", "[[route]]"]
        for key, value in route.items():
            if isinstance(value, str):
                lines.append(f'{key} = "{value}"')
            else:
                words = ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in value)
                lines.append(f"{key} = [{words}]")
    return "\n".join(lines) + "\n"
