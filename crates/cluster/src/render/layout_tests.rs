use super::*;
use crate::file::ClusterFile;
use crate::plan::PlanOptions;

fn ring(hosts: usize, closed: bool) -> Plan {
    let mut text = String::from("schema = \"railweave-cluster/1\"\n");
    for host in 0..hosts {
        text.push_str(&format!("[[host]]\nname = \"spark{host}\"\n"));
        for port in 0..2 {
            text.push_str(&format!("[[host.port]]\nname = \"p{port}\"\n"));
            for number in 0..2 {
                text.push_str(&format!(
                    "[[host.port.function]]\nmac = \"02:00:00:00:{host:02x}:{port}{number}\"\nnetdev = \"n{port}{number}\"\n\
                     rdma = \"roceP2p1s{number}f{port}\"\n"
                ));
            }
        }
    }
    let last = if closed { hosts } else { hosts - 1 };
    for host in 0..last {
        text.push_str(&format!(
            "[[cable]]\na = \"spark{host}.p0\"\nb = \"spark{}.p1\"\n",
            (host + 1) % hosts
        ));
    }
    let file = ClusterFile::parse(&text).unwrap();
    Plan::of(&file, &PlanOptions::default()).unwrap()
}

#[test]
fn boxes_are_apart_and_on_the_sheet() {
    for (hosts, closed) in
        (3..=8).map(|hosts| (hosts, true)).chain((2..=8).map(|hosts| (hosts, false)))
    {
        let layout = layout(&ring(hosts, closed));
        assert_eq!(layout.hosts.len(), hosts);
        for (i, a) in layout.hosts.iter().enumerate() {
            assert!(
                a.x - layout.half.0 >= 0.0 && a.x + layout.half.0 <= layout.width,
                "{hosts} {closed} {i}"
            );
            assert!(
                a.y - layout.half.1 >= 0.0 && a.y + layout.half.1 <= layout.height,
                "{hosts} {closed} {i}"
            );
            for b in &layout.hosts[..i] {
                let apart = ((a.x - b.x).abs() - 2.0 * layout.half.0)
                    .max((a.y - b.y).abs() - 2.0 * layout.half.1);
                assert!(apart > 30.0, "{hosts} {closed}: boxes {apart} apart");
            }
        }
    }
}

#[test]
fn cables_end_at_the_borders_of_their_hosts() {
    let plan = ring(5, true);
    let layout = layout(&plan);
    for (cable, line) in plan.cables.iter().zip(&layout.lines) {
        for (rank, end) in [(cable.a.0, line.a), (cable.b.as_ref().unwrap().0, line.b)] {
            let centre = layout.hosts[rank];
            let (x, y) = ((end.x - centre.x).abs(), (end.y - centre.y).abs());
            let on_side = (x - layout.half.0).abs() < 0.01 && y <= layout.half.1 + 0.01;
            let on_top = (y - layout.half.1).abs() < 0.01 && x <= layout.half.0 + 0.01;
            assert!(on_side || on_top, "{}: {x} {y}", cable.name);
        }
    }
}
