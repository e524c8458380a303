#!/bin/sh
# Railweave: 11 steps, in this order. Run as root.
set -eu
at=0
trap 'test $? -eq 0 || echo "railweave: step $at of 11 failed; later steps were not tried" >&2' EXIT

# 1. h1 to h3 rail 0: leaves by h1p0f0
at=1
ip route add 10.10.4.2/32 dev h1p0f0 src 10.10.2.1 scope link proto 157

# 2. h1 to h3 rail 1: leaves by h1p1f1
at=2
ip route add 10.10.7.1/32 dev h1p1f1 src 10.10.1.2 scope link proto 157

# 3. h1 to h3 rail 0: the first hop is h2, which passes the packets on; nobody answers for 10.10.4.2 here
at=3
ip neigh replace 10.10.4.2 lladdr 02:72:77:02:01:00 dev h1p0f0 nud permanent protocol 157

# 4. h1 to h3 rail 1: the first hop is h0, which passes the packets on; nobody answers for 10.10.7.1 here
at=4
ip neigh replace 10.10.7.1 lladdr 02:72:77:00:00:01 dev h1p1f1 nud permanent protocol 157

# 5. h1p0f0 takes filters; does nothing if it does already
at=5
tc qdisc replace dev h1p0f0 clsact

# 6. h2 to h0 rail 0: last relay, so the packet is made IPv4 again and goes out by h1p1f0
at=6
tc filter add dev h1p0f0 ingress protocol 0x88b5 pref 18801 handle 0x1 flower src_mac 02:72:77:02:01:00 dst_mac 02:72:77:01:00:00 action pedit ex munge eth type set 0x0800 munge eth dst set 02:72:77:00:00:00 pipe action mirred egress redirect dev h1p1f0

# 7. h1p1f0 takes filters; does nothing if it does already
at=7
tc qdisc replace dev h1p1f0 clsact

# 8. h0 to h2 rail 0: last relay, so the packet is made IPv4 again and goes out by h1p0f0
at=8
tc filter add dev h1p1f0 ingress protocol 0x88b5 pref 18801 handle 0x1 flower src_mac 02:72:77:00:00:00 dst_mac 02:72:77:01:01:00 action pedit ex munge eth type set 0x0800 munge eth dst set 02:72:77:02:01:00 pipe action mirred egress redirect dev h1p0f0

# 9. h1 to h3 rail 0: packets to 10.10.4.2 leave with EtherType 0x88b5
at=9
tc filter add dev h1p0f0 egress protocol ip pref 18801 handle 0x1 flower ip_proto udp dst_port 4791 dst_ip 10.10.4.2 src_port 65535 action pedit ex munge eth type set 0x88b5

# 10. h1p1f1 takes filters; does nothing if it does already
at=10
tc qdisc replace dev h1p1f1 clsact

# 11. h1 to h3 rail 1: packets to 10.10.7.1 leave with EtherType 0x88b5
at=11
tc filter add dev h1p1f1 egress protocol ip pref 18801 handle 0x1 flower ip_proto udp dst_port 4791 dst_ip 10.10.7.1 src_port 65535 action pedit ex munge eth type set 0x88b5
