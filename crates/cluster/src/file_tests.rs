use super::*;

const RING4: &str = include_str!("../fixtures/gb10-ring4/cluster.toml");

/// What a change of the fixture is refused with.
fn refused(from: &str, to: &str) -> String {
    assert!(RING4.contains(from), "{from} is not in the fixture");
    refusal(&RING4.replacen(from, to, 1))
}

fn refusal(text: &str) -> String {
    match ClusterFile::parse(text) {
        Ok(_) => panic!("this is accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

fn changed(change: impl FnOnce(&mut ClusterFile)) -> String {
    let mut file = ClusterFile::parse(RING4).unwrap();
    change(&mut file);
    file.validate().unwrap_err().to_string()
}

#[test]
fn the_fixture_reads_back_as_written() {
    let file = ClusterFile::parse(RING4).unwrap();
    assert_eq!(file.hosts.len(), 4);
    let text = file.to_text();
    let again = ClusterFile::parse(&text).unwrap();
    assert_eq!(again, file);
    assert_eq!(again.to_text(), text);
    // The fixture is written as this crate writes it, but for blank lines and what stands for itself.
    assert_eq!(text.trim_end(), RING4.trim_end());
}

#[test]
fn everything_a_file_can_say_reads_back() {
    let mut file = ClusterFile::parse(RING4).unwrap();
    file.forward = Forward::Required;
    file.tag = TagKind::SourcePort;
    file.mtu_bytes = 4200;
    file.switches.push(Switch { name: "sw0".to_owned() });
    file.hosts[0].control = None;
    file.hosts[0].ports[0].functions[0].rdma = None;
    file.hosts[0].ports[0].functions[0].pci = None;
    file.hosts[1].reach = "ssh:\"q\\uote\"".to_owned();
    file.routes.push("spark0>spark2 via spark1 rails 0 kind relayed".parse().unwrap());
    file.routes.push("spark1>spark0".parse().unwrap());
    let text = file.to_text();
    assert_eq!(ClusterFile::parse(&text).unwrap(), file);
}

#[test]
fn defaults_are_off_destination_and_9000() {
    let text = "schema = \"railweave-cluster/1\"\n[[host]]\nname = \"a\"";
    let file = ClusterFile::parse(text).unwrap();
    assert_eq!(
        (file.forward, file.tag, file.mtu_bytes),
        (Forward::Off, TagKind::Destination, 9000)
    );
    assert_eq!(file.hosts[0].reach, "local");
}

#[test]
fn addresses_may_be_missing() {
    let bare: Vec<&str> = RING4.lines().filter(|line| !line.starts_with("address")).collect();
    ClusterFile::parse(&bare.join("\n")).unwrap();
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (from, to, says) in [
        (
            "forward =",
            "forwrd =",
            "the file has no key \"forwrd\" (did you mean \"forward\"?); its keys are schema, ",
        ),
        ("reach =", "raech =", "[[host]] has no key \"raech\" (did you mean \"reach\"?)"),
        (
            "netdev =",
            "netdv =",
            "[[host.port.function]] has no key \"netdv\" (did you mean \"netdev\"?)",
        ),
        ("b = ", "to = ", "[[cable]] has no key \"to\""),
        (
            "name = \"p0\"",
            "label = \"p0\"",
            "[[host.port]] has no key \"label\"; its keys are name, function",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(says), "{error}\n{says}");
    }
}

#[test]
fn what_is_no_cluster_file_is_refused() {
    assert!(refusal(&" ".repeat(MAX_BYTES + 1)).contains("at most 1048576 are read"));
    assert!(refusal("schema = ").contains("cannot be read"));
    assert!(refusal("").contains("schema"));
    assert!(
        refused("cluster/1", "cluster/2")
            .contains("schema \"railweave-cluster/2\" is not known to this build")
    );
    // Another schema may have other keys: the schema is what is wrong.
    assert!(refusal("schema = \"other/7\"\nrooms = 3").contains("other/7"));
    assert!(
        refused("\"4c:bb:47:00:00:00\"", "\"4c:bb\"")
            .contains("is not a hardware address, such as")
    );
    assert!(
        refused("10.10.0.1/24", "10.10.0.1")
            .contains("is not an IPv4 address with a prefix length")
    );
    assert!(refused("forward = \"auto\"", "forward = \"maybe\"").contains("maybe"));
    let nested = format!("schema = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refusal(&nested).contains("cannot be read"));
}

#[test]
fn what_is_repeated_is_named() {
    for (from, to, says) in [
        (
            "name = \"spark1\"",
            "name = \"spark0\"",
            "two entries are named \"spark0\" (host 0 and host 1)",
        ),
        ("name = \"p1\"", "name = \"p0\"", "host spark0 has two ports named \"p0\""),
        (
            "4c:bb:47:00:01:00",
            "4c:bb:47:00:00:11",
            "spark0.p1.1 and spark1.p0.0 both have mac 4c:bb:47:00:00:11",
        ),
        ("10.10.2.2/24", "10.10.0.2/24", "spark1.p1.0 and spark2.p1.0 both have address 10.10.0.2"),
        (
            "\"enP2p1s0f0np0\"",
            "\"enp1s0f0np0\"",
            "spark0.p0.0 and spark0.p0.1 both have netdev enp1s0f0np0",
        ),
        ("\"roceP2p1s0f0\"", "\"rocep1s0f0\"", "both have rdma rocep1s0f0"),
        ("\"0002:01:00.0\"", "\"0000:01:00.0\"", "both have pci 0000:01:00.0"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(says), "{error}\n{says}");
    }
}

#[test]
fn cables_that_cannot_be_are_named() {
    for (from, to, says) in [
        (
            "\"spark1.p1\"",
            "\"spork1.p1\"",
            "cable spark0.p0–spork1.p1: there is no host \"spork1\" (did you mean \"spark",
        ),
        (
            "\"spark1.p1\"",
            "\"spark1.p2\"",
            "host spark1 has no port \"p2\" (did you mean \"p0\"?); it has p0, p1",
        ),
        (
            "\"spark1.p1\"",
            "\"spark1\"",
            "\"spark1\" is no end of a cable: write host.port, such as spark0.p0",
        ),
        (
            "\"spark1.p1\"",
            "\"spark3.p1\"",
            "port spark3.p1 is in two cables, spark0.p0–spark3.p1 and spark2.p0–spark3.p1",
        ),
        (
            "\"spark1.p1\"",
            "\"spark0.p0\"",
            "cable spark0.p0–spark0.p0 joins port spark0.p0 to itself",
        ),
        (
            "\"spark1.p1\"",
            "\"spark0.p1\"",
            "cable spark0.p0–spark0.p1 joins two ports of host spark0",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(says), "{error}\n{says}");
    }
    let text = format!("{RING4}\n[[switch]]\nname = \"sw0\"\n").replacen(
        "a = \"spark0.p0\"",
        "a = \"sw0\"",
        1,
    );
    assert!(refusal(&text).contains("a switch's name stands in b"), "{}", refusal(&text));
}

#[test]
fn networks_are_at_two_ends_of_a_cable() {
    for (from, to, says) in [
        // One end only: the other has none, or another one.
        (
            "address = \"10.10.0.2/24\"\n",
            "",
            "network 10.10.0.0/24 is at one end only, spark0.p0.0: give spark1.p1.0, at the \
          other end of its cable, address 10.10.0.2/24, or remove this one",
        ),
        (
            "10.10.0.2/24",
            "10.99.0.2/24",
            "network 10.10.0.0/24 is at one end only, spark0.p0.0: give spark1.p1.0",
        ),
        // Three ends.
        (
            "10.10.2.1/24",
            "10.10.0.3/24",
            "network 10.10.0.0/24 is at 3 ends, spark0.p0.0, spark1.p0.0, spark1.p1.0",
        ),
        // Lengths that differ.
        (
            "10.10.0.2/24",
            "10.10.0.2/16",
            "spark1.p1.0 has 10.10.0.2/16 and spark0.p0.0 has 10.10.0.1/24: the networks \
          overlap and their prefixes differ",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(says), "{error}\n{says}");
    }
}

#[test]
fn networks_across_cables_and_on_one_host_are_named() {
    // The two ends of another cable: exchange the addresses of spark1's two ports, function 0.
    let crossed = RING4.replacen("10.10.2.1/24", "10.10.0.9/24", 1).replacen(
        "10.10.0.2/24",
        "10.10.2.1/24",
        1,
    );
    let error = refusal(&crossed);
    assert!(error.contains("network 10.10.0.0/24 is at spark0.p0.0 and spark1.p0.0, which no cable joins: spark0.p0 is \
                            cabled to spark1.p1"), "{error}");
    let one_host = changed(|file| {
        let address = |text: &str| Some(text.parse().unwrap());
        file.hosts[0].ports[0].functions[0].address = address("10.77.0.1/24");
        file.hosts[0].ports[1].functions[0].address = address("10.77.0.2/24");
        file.hosts[1].ports[1].functions[0].address = None;
        file.hosts[3].ports[0].functions[0].address = None;
    });
    assert!(one_host.contains("they are on one host"), "{one_host}");
    let unplugged = changed(|file| drop(file.cables.pop()));
    assert!(
        unplugged.contains(
            "network 10.10.6.0/24 is at spark0.p1.0 and spark3.p0.0, which no cable joins: add the \
                                cable spark0.p1–spark3.p0"
        ),
        "{unplugged}"
    );
    let alone = changed(|file| {
        file.cables.pop();
        for function in file.hosts[3].ports[0].functions.iter_mut() {
            function.address = None;
        }
    });
    assert!(
        alone.contains("no cable is in spark0.p1; add the [[cable]], or remove the address"),
        "{alone}"
    );
}

#[test]
fn addresses_no_netdev_can_have_are_refused() {
    for (address, why) in [
        ("0.0.0.1/8", "unspecified"),
        ("127.0.0.1/8", "a loopback address"),
        ("224.0.0.5/24", "an address of a group"),
        ("255.255.255.255/24", "reserved"),
        ("10.10.0.0/24", "the network's own address"),
        ("10.10.0.255/24", "the network's broadcast address"),
        ("10.10.0.1/32", "in no network that two ends can share"),
        ("10.10.0.1/0", "in no network that two ends can share"),
    ] {
        let error = refused("10.10.0.1/24", address);
        assert!(error.contains(why), "{address}: {error}");
    }
    // Two addresses are all a /31 has, and both may be used.
    let narrow =
        RING4.replace("10.10.0.1/24", "10.10.0.0/31").replace("10.10.0.2/24", "10.10.0.1/31");
    ClusterFile::parse(&narrow).unwrap();
}

#[test]
fn a_switch_has_any_number_of_ends_in_one_network() {
    let mut file = ClusterFile::parse(RING4).unwrap();
    file.cables.clear();
    file.switches.push(Switch { name: "sw0".to_owned() });
    for (h, host) in file.hosts.iter_mut().enumerate() {
        file.cables.push(CableEntry { a: format!("{}.p0", host.name), b: "sw0".to_owned() });
        for port in &mut host.ports {
            for function in &mut port.functions {
                function.address = None;
            }
        }
        host.ports[0].functions[0].address = Some(format!("10.0.0.{}/24", h + 1).parse().unwrap());
    }
    file.validate().unwrap();
    assert_eq!(ClusterFile::parse(&file.to_text()).unwrap(), file);
    // The network of a switch is nowhere else.
    file.hosts[0].ports[1].functions[0].address = Some("10.0.0.77/24".parse().unwrap());
    let error = file.validate().unwrap_err().to_string();
    assert!(error.contains("network 10.0.0.0/24 is at 5 ends"), "{error}");
}

#[test]
fn values_out_of_range_are_refused() {
    assert!(
        refused("mtu_bytes = 9000", "mtu_bytes = 1000")
            .contains("mtu_bytes = 1000 is out of range: it is 1280 to 9978")
    );
    assert!(refused("mtu_bytes = 9000", "mtu_bytes = 65535").contains("out of range"));
    assert!(
        refusal("schema = \"railweave-cluster/1\"")
            .contains("the file has 0 hosts; a cluster has 1 to 16")
    );
    let host = |i: usize| format!("[[host]]\nname = \"h{i}\"\n");
    let many =
        format!("schema = \"railweave-cluster/1\"\n{}", (0..17).map(host).collect::<String>());
    assert!(refusal(&many).contains("the file has 17 hosts"));
    let ports = changed(|file| {
        let port = file.hosts[2].ports[0].clone();
        file.hosts[2].ports.extend(std::iter::repeat_n(port, 7));
    });
    assert!(ports.contains("host spark2 has 9 ports; a host has at most 8"), "{ports}");
    let functions = changed(|file| file.hosts[2].ports[0].functions.clear());
    assert!(functions.contains("port spark2.p0 has 0 functions; a port has 1 to 4"), "{functions}");
    let functions = changed(|file| {
        let function = file.hosts[2].ports[0].functions[0].clone();
        file.hosts[2].ports[0].functions.extend(std::iter::repeat_n(function, 3));
    });
    assert!(functions.contains("port spark2.p0 has 5 functions"), "{functions}");
}

#[test]
fn names_that_could_be_commands_are_refused() {
    for (from, to) in [
        ("name = \"spark0\"", "name = \"spark0;reboot\""),
        ("name = \"spark0\"", "name = \"\""),
        ("name = \"spark0\"", "name = \"-h\""),
        ("name = \"p0\"", "name = \"p.0\""),
        ("netdev = \"enp1s0f0np0\"", "netdev = \"$(reboot)\""),
        ("netdev = \"enp1s0f0np0\"", "netdev = \"a-name-of-16-byte\""),
        ("rdma = \"rocep1s0f0\"", "rdma = \"roce p1\""),
        ("rdma = \"rocep1s0f0\"", "rdma = \"-d\""),
        ("reach = \"ssh:spark0\"", "reach = \"ssh:spark0\\nrm\""),
        ("control = \"192.168.1.10\"", "control = \"\""),
        ("4c:bb:47:00:00:00", "01:bb:47:00:00:00"),
        ("4c:bb:47:00:00:00", "00:00:00:00:00:00"),
    ] {
        let error = refused(from, to);
        assert!(
            error.contains("cannot be the") || error.contains("no single netdev can have"),
            "{to}: {error}"
        );
    }
}

#[test]
fn routes_read_from_words() {
    let route: RouteEntry = "a > b via c, d rails 0,1 kind forwarded".parse().unwrap();
    let expected = RouteEntry {
        from: "a".to_owned(),
        to: "b".to_owned(),
        via: vec!["c".to_owned(), "d".to_owned()],
        kind: Some("forwarded".to_owned()),
        rails: vec![0, 1],
    };
    assert_eq!(route, expected);
    assert_eq!(route.to_string(), "a>b via c,d rails 0,1 kind forwarded");
    assert_eq!(route.to_string().parse::<RouteEntry>().unwrap(), route);
    assert_eq!("a>b kind relayed rails 1 via c".parse::<RouteEntry>().unwrap().rails, [1]);
    assert_eq!("a>b".parse::<RouteEntry>().unwrap().via, Vec::<String>::new());
}

#[test]
fn words_that_are_no_route_are_refused() {
    for (text, says) in [
        ("", "does not begin with FROM>TO"),
        ("a b", "does not begin with FROM>TO"),
        ("a>", "does not begin with FROM>TO"),
        ("a>b via", "nothing follows \"via\""),
        ("a>b via c,", "nothing follows \"via\""),
        ("a>b rails x", "is no list of numbers"),
        ("a>b rails 4", "numbered 0 to 3"),
        ("a>b rails 1,1", "names rail 1 twice"),
        ("a>b rails 99999999999999999999", "is no list of numbers"),
        ("a>b kind fast", "none of direct, forwarded and relayed"),
        ("a>b kind direct,relayed", "has one kind"),
        ("a>b via c kind direct", "a direct path has no hosts between"),
        ("a>b over c", "\"over\" is none of via, rails and kind"),
        ("a>b via c via d", "says \"via\" twice"),
        ("a>a", "leads from a to itself"),
        ("a>b via a", "visits a twice"),
        ("a>b via c,c", "visits c twice"),
    ] {
        let error = text.parse::<RouteEntry>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    assert!(
        "a".repeat(5000).parse::<RouteEntry>().unwrap_err().to_string().contains("longer than")
    );
}

#[test]
fn routes_of_a_file_name_its_hosts() {
    let route = |text: &str| refusal(&format!("{RING4}\n[[route]]\n{text}"));
    let error = route("from = \"spark0\"\nto = \"spark22\"");
    assert!(
        error.contains(
            "route spark0>spark22: there is no host \"spark22\" (did you mean \"spark2\"?)"
        ),
        "{error}"
    );
    assert!(
        route("from = \"spark0\"\nto = \"spark2\"\nvia = [\"elsewhere\"]")
            .contains("there is no host \"elsewhere\"")
    );
    assert!(
        route("from = \"spark0\"\nto = \"spark2\"\nkind = \"fast\"")
            .contains("kind \"fast\" is none of")
    );
}

#[test]
fn a_control_address_is_one_that_others_can_reach() {
    for wrong in ["0.0.0.0", "::", "224.0.0.1", "192.168.1.10:29400", "1.2.3", "-x", "a;b", "a/b"] {
        let error = refused("control = \"192.168.1.10\"", &format!("control = {wrong:?}"));
        assert!(error.contains("control") && error.contains("spark0"), "{error}");
    }
    for right in ["10.0.0.7", "fd00::7", "spark0", "spark0.lan", "127.0.0.1"] {
        let text = RING4.replacen("control = \"192.168.1.10\"", &format!("control = {right:?}"), 1);
        ClusterFile::parse(&text).unwrap();
    }
}
