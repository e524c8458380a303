#!/bin/sh
# Railweave: 23 steps, in this order. Run as root.
set -eu
at=0
trap 'test $? -eq 0 || echo "railweave: step $at of 23 failed; later steps were not tried" >&2' EXIT

# 1. enp1s0f0np0 passes packets on: hairpin_num_queues 2 is not enough, 4 takes effect with the reload
at=1
devlink dev param set pci/0000:01:00.0 name hairpin_num_queues value 4 cmode driverinit

# 2. enp1s0f0np0 passes packets on: hairpin_queue_size 1024 is not enough, 8192 takes effect with the reload
at=2
devlink dev param set pci/0000:01:00.0 name hairpin_queue_size value 8192 cmode driverinit

# 3. starts enp1s0f0np0 anew with its new queues: about 4 s; ends its queue pairs, wipes its routes and filters
at=3
devlink dev reload pci/0000:01:00.0 action driver_reinit

# 4. enp1s0f1np1 passes packets on: hairpin_num_queues 2 is not enough, 4 takes effect with the reload
at=4
devlink dev param set pci/0000:01:00.1 name hairpin_num_queues value 4 cmode driverinit

# 5. enp1s0f1np1 passes packets on: hairpin_queue_size 1024 is not enough, 8192 takes effect with the reload
at=5
devlink dev param set pci/0000:01:00.1 name hairpin_queue_size value 8192 cmode driverinit

# 6. starts enp1s0f1np1 anew with its new queues: about 4 s; ends its queue pairs, wipes its routes and filters
at=6
devlink dev reload pci/0000:01:00.1 action driver_reinit

# 7. enp1s0f0np0 comes back, and what manages addresses gives it 10.10.4.1/24 again
at=7
timeout 30 sh -c 'until ip -4 -o address show dev "$1" up | grep -qF " $2 "; do sleep 0.2; done' wait enp1s0f0np0 10.10.4.1/24

# 8. enp1s0f1np1 comes back, and what manages addresses gives it 10.10.2.2/24 again
at=8
timeout 30 sh -c 'until ip -4 -o address show dev "$1" up | grep -qF " $2 "; do sleep 0.2; done' wait enp1s0f1np1 10.10.2.2/24

# 9. enp1s0f0np0: flow_steering_mode smfs does not take these rules, hmfs does
at=9
devlink dev param set pci/0000:01:00.0 name flow_steering_mode value hmfs cmode runtime

# 10. enP2p1s0f0np0: flow_steering_mode smfs does not take these rules, hmfs does
at=10
devlink dev param set pci/0002:01:00.0 name flow_steering_mode value hmfs cmode runtime

# 11. enp1s0f1np1: flow_steering_mode smfs does not take these rules, hmfs does
at=11
devlink dev param set pci/0000:01:00.1 name flow_steering_mode value hmfs cmode runtime

# 12. lets the NIC carry out the filters of enp1s0f0np0; off after every boot and reload
at=12
ethtool -K enp1s0f0np0 hw-tc-offload on

# 13. lets the NIC carry out the filters of enp1s0f1np1; off after every boot and reload
at=13
ethtool -K enp1s0f1np1 hw-tc-offload on

# 14. spark2 to spark0 rail 0: leaves by enp1s0f1np1
at=14
ip route add 10.10.0.1/32 dev enp1s0f1np1 src 10.10.2.2 scope link proto 157

# 15. spark2 to spark0 rail 1: leaves by enP2p1s0f0np0
at=15
ip route add 10.10.7.2/32 dev enP2p1s0f0np0 src 10.10.5.1 scope link proto 157

# 16. spark2 to spark0 rail 0: the first hop is spark1, which passes the packets on; nobody answers for 10.10.0.1 here
at=16
ip neigh replace 10.10.0.1 lladdr 4c:bb:47:00:01:00 dev enp1s0f1np1 nud permanent protocol 157

# 17. spark2 to spark0 rail 1: the first hop is spark3, which passes the packets on; nobody answers for 10.10.7.2 here
at=17
ip neigh replace 10.10.7.2 lladdr 4c:bb:47:00:03:11 dev enP2p1s0f0np0 nud permanent protocol 157

# 18. enp1s0f0np0 takes filters; does nothing if it does already
at=18
tc qdisc replace dev enp1s0f0np0 clsact

# 19. spark3 to spark1 rail 0: last relay, so the packet is made IPv4 again and goes out by enp1s0f1np1
at=19
tc filter add dev enp1s0f0np0 ingress protocol 0x88b5 pref 18801 handle 0x1 flower skip_sw src_mac 4c:bb:47:00:03:10 dst_mac 4c:bb:47:00:02:00 action pedit ex munge eth type set 0x0800 munge eth dst set 4c:bb:47:00:01:00 pipe action mirred egress redirect dev enp1s0f1np1

# 20. enp1s0f1np1 takes filters; does nothing if it does already
at=20
tc qdisc replace dev enp1s0f1np1 clsact

# 21. spark1 to spark3 rail 0: last relay, so the packet is made IPv4 again and goes out by enp1s0f0np0
at=21
tc filter add dev enp1s0f1np1 ingress protocol 0x88b5 pref 18801 handle 0x1 flower skip_sw src_mac 4c:bb:47:00:01:00 dst_mac 4c:bb:47:00:02:10 action pedit ex munge eth type set 0x0800 munge eth dst set 4c:bb:47:00:03:10 pipe action mirred egress redirect dev enp1s0f0np0

# 22. spark2 to spark0 rail 1: roceP2p1s0f0 marks UDP source port 65535 as 0x88b5
at=22
systemd-run --unit=railweave-mark-roceP2p1s0f0.service --collect --property=Type=exec --property=Restart=always --property=RestartSec=1 mlx5-rdma-tx-rewrite-probe --device roceP2p1s0f0 --source-port 65535 --replacement-ethertype 0x88b5 --attach --managed

# 23. spark2 to spark0 rail 0: rocep1s0f1 marks UDP source port 65535 as 0x88b5
at=23
systemd-run --unit=railweave-mark-rocep1s0f1.service --collect --property=Type=exec --property=Restart=always --property=RestartSec=1 mlx5-rdma-tx-rewrite-probe --device rocep1s0f1 --source-port 65535 --replacement-ethertype 0x88b5 --attach --managed
