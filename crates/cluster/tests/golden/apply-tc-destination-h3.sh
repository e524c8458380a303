#!/bin/sh
# Railweave: 11 steps, in this order. Run as root.
set -eu
at=0
trap 'test $? -eq 0 || echo "railweave: step $at of 11 failed; later steps were not tried" >&2' EXIT

# 1. h3 to h1 rail 1: leaves by h3p0f1
at=1
ip route add 10.10.1.2/32 dev h3p0f1 src 10.10.7.1 scope link proto 157

# 2. h3 to h1 rail 0: leaves by h3p1f0
at=2
ip route add 10.10.2.1/32 dev h3p1f0 src 10.10.4.2 scope link proto 157

# 3. h3 to h1 rail 1: the first hop is h0, which passes the packets on; nobody answers for 10.10.1.2 here
at=3
ip neigh replace 10.10.1.2 lladdr 02:72:77:00:01:01 dev h3p0f1 nud permanent protocol 157

# 4. h3 to h1 rail 0: the first hop is h2, which passes the packets on; nobody answers for 10.10.2.1 here
at=4
ip neigh replace 10.10.2.1 lladdr 02:72:77:02:00:00 dev h3p1f0 nud permanent protocol 157

# 5. h3p0f1 takes filters; does nothing if it does already
at=5
tc qdisc replace dev h3p0f1 clsact

# 6. h0 to h2 rail 1: last relay, so the packet is made IPv4 again and goes out by h3p1f1
at=6
tc filter add dev h3p0f1 ingress protocol 0x88b5 pref 18801 handle 0x1 flower dst_mac 02:72:77:03:00:01 action pedit ex munge eth type set 0x0800 munge eth dst set 02:72:77:02:00:01 pipe action mirred egress redirect dev h3p1f1

# 7. h3p1f1 takes filters; does nothing if it does already
at=7
tc qdisc replace dev h3p1f1 clsact

# 8. h2 to h0 rail 1: last relay, so the packet is made IPv4 again and goes out by h3p0f1
at=8
tc filter add dev h3p1f1 ingress protocol 0x88b5 pref 18801 handle 0x1 flower dst_mac 02:72:77:03:01:01 action pedit ex munge eth type set 0x0800 munge eth dst set 02:72:77:00:01:01 pipe action mirred egress redirect dev h3p0f1

# 9. h3 to h1 rail 1: packets to 10.10.1.2 leave with EtherType 0x88b5
at=9
tc filter add dev h3p0f1 egress protocol ip pref 18801 handle 0x1 flower ip_proto udp dst_port 4791 dst_ip 10.10.1.2 action pedit ex munge eth type set 0x88b5

# 10. h3p1f0 takes filters; does nothing if it does already
at=10
tc qdisc replace dev h3p1f0 clsact

# 11. h3 to h1 rail 0: packets to 10.10.2.1 leave with EtherType 0x88b5
at=11
tc filter add dev h3p1f0 egress protocol ip pref 18801 handle 0x1 flower ip_proto udp dst_port 4791 dst_ip 10.10.2.1 action pedit ex munge eth type set 0x88b5
