use cluster::file::ClusterFile;
use cluster::inventory::Recording;
use cluster::inventory::recording::ToolOutput;
use cluster::plan::PlanOptions;

use super::*;

const FILE: &str = include_str!("../../cluster/fixtures/soft-ring4/cluster.toml");

fn plan() -> Arc<Plan> {
    let file = ClusterFile::parse(FILE).unwrap();
    Arc::new(Plan::of(&file, &PlanOptions::default()).unwrap())
}

/// One rule as `tc -s -j` prints it: EtherType 34997 is 0x88b5.
fn filter(preference: u32, into: &str, next: (&str, &str), out: &str, packets: u64) -> String {
    let stats = format!("\"stats\":{{\"bytes\":1,\"packets\":{packets},\"drops\":0}}");
    format!(
        "[{{\"protocol\":\"[34997]\",\"pref\":{preference},\"kind\":\"flower\",\"chain\":0}},\
         {{\"protocol\":\"[34997]\",\"pref\":{preference},\"kind\":\"flower\",\"chain\":0,\"options\":{{\"handle\":1,\
         \"keys\":{{\"dst_mac\":\"{into}\",\"eth_type\":\"88b5\"}},\"not_in_hw\":true,\"actions\":[\
         {{\"order\":1,\"kind\":\"pedit\",{stats},\"keys\":[\
         {{\"htype\":\"eth\",\"offset\":12,\"cmd\":\"set\",\"val\":\"8000000\",\"mask\":\"ffff\"}},\
         {{\"htype\":\"eth\",\"offset\":0,\"cmd\":\"set\",\"val\":\"{}\",\"mask\":\"0\"}},\
         {{\"htype\":\"eth\",\"offset\":4,\"cmd\":\"set\",\"val\":\"{}\",\"mask\":\"ffff\"}}]}},\
         {{\"order\":2,\"kind\":\"mirred\",\"mirred_action\":\"redirect\",\"direction\":\"egress\",\
         \"to_dev\":\"{out}\",{stats}}}]}}}}]",
        next.0, next.1
    )
}

/// Host h1 of the ring, whose rule for packets from h0 to h2 is this; the other one took 7.
fn state(there: Option<String>) -> RulesState {
    let mut recording = Recording::default();
    let mut print = |tool: &str, text: String| {
        recording.tools.insert(tool.to_owned(), ToolOutput::Printed(text));
    };
    print(
        "tc-qdisc",
        "[{\"kind\":\"clsact\",\"dev\":\"h1p0f0\"},{\"kind\":\"clsact\",\"dev\":\"h1p1f0\"}]"
            .to_owned(),
    );
    print("tc-filter.h1p1f0", there.unwrap_or_default());
    print("tc-filter.h1p0f0", filter(18801, "02:72:77:01:00:00", ("2727700", "0"), "h1p1f0", 7));
    for (name, mac) in [("h1p0f0", "02:72:77:01:00:00"), ("h1p1f0", "02:72:77:01:01:00")] {
        let mut file = |what: &str, text: &str| {
            recording.files.insert(format!("/sys/class/net/{name}/{what}"), text.to_owned());
        };
        file("address", mac);
        file("mtu", "9000");
        file("ifindex", "3");
        file("flags", "0x1003");
        recording.links.insert(format!("/sys/class/net/{name}/device"), "../virtio1".to_owned());
    }
    recording.files.insert(
        "/proc/net/snmp".to_owned(),
        "Ip: Forwarding DefaultTTL InReceives ForwDatagrams\nIp: 2 64 5 9".to_owned(),
    );
    RulesState::of(HostState::of(&recording))
}

fn right(packets: u64) -> String {
    filter(18801, "02:72:77:01:01:00", ("2727702", "1000000"), "h1p0f0", packets)
}

#[test]
fn a_hosts_state_is_read_from_what_tc_prints() {
    let state = state(Some(right(5)));
    assert_eq!(state.netdevs.len(), 2, "{state:?}");
    assert_eq!(state.forwarded_datagrams, Seen::Known(9));
    assert_eq!(state.filters.known().unwrap().len(), 2, "{state:?}");
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<RulesState>(&text).unwrap(), state);
}

#[test]
fn a_witness_counts_what_its_rules_took() {
    let plan = plan();
    let witness = RuleWitness::new(Arc::clone(&plan), 1).unwrap();
    let hits = witness.hits(Ok(state(Some(right(5)))));
    let of = |from, to| hits.iter().find(|one| (one.from, one.to) == (from, to)).unwrap();
    assert_eq!(hits.len(), 2, "{hits:?}");
    assert_eq!((of(0, 2).packets, of(0, 2).why.as_str()), (Some(5), ""));
    assert_eq!(of(2, 0).packets, Some(7));

    let unread = witness.hits(Err("no tc here".to_owned()));
    assert!(unread.iter().all(|one| one.packets.is_none()), "{unread:?}");
    assert!(unread[0].why.contains("not measured: no tc here"), "{unread:?}");
}

#[test]
fn a_rule_that_is_gone_or_does_something_else_is_missing() {
    let plan = plan();
    let witness = RuleWitness::new(plan, 1).unwrap();
    let there = |filter| {
        let hits = witness.hits(Ok(state(filter)));
        hits.into_iter().find(|one| (one.from, one.to) == (0, 2)).unwrap()
    };
    let gone = there(None);
    assert_eq!(gone.packets, None);
    let named = "the rule with preference 18801 for EtherType 0x88b5 on h1p1f0 is missing";
    assert!(gone.why.starts_with(named), "{gone:?}");
    // Another next hop, another way out, another function it stands for.
    for wrong in [
        filter(18801, "02:72:77:01:01:00", ("2727703", "1000000"), "h1p0f0", 5),
        filter(18801, "02:72:77:01:01:00", ("2727702", "1000000"), "h1p0f1", 5),
        filter(18801, "02:72:77:01:01:01", ("2727702", "1000000"), "h1p0f0", 5),
    ] {
        let hits = there(Some(wrong.clone()));
        assert_eq!(hits.packets, None, "{wrong}");
        assert!(hits.why.contains("is missing"), "{hits:?}");
    }
    // Under a preference of the owner's it does the same.
    let owners = filter(49152, "02:72:77:01:01:00", ("2727702", "1000000"), "h1p0f0", 6);
    assert_eq!(there(Some(owners)).packets, Some(6));
}

#[test]
fn who_passes_nothing_on_has_no_witness() {
    let text = FILE.replace("forward = \"required\"", "forward = \"off\"");
    let file = ClusterFile::parse(&text).unwrap();
    let plan = Arc::new(Plan::of(&file, &PlanOptions::default()).unwrap());
    assert!(RuleWitness::new(plan, 1).is_none());
}
