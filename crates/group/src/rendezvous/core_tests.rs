use super::*;

fn request(rank: u8) -> Join {
    Join {
        rank,
        size: 3,
        last_epoch: None,
        instance: [u64::from(rank), 1],
        host_name: format!("h{rank}"),
        host_id: "one".into(),
        ip: "127.0.0.1".parse().unwrap(),
        port: 1000 + u16::from(rank),
        config: BTreeMap::from([("model".to_owned(), "ab".to_owned())]),
        wait_ms: 10_000,
        blob: vec![rank],
    }
}

struct Meeting {
    core: HostCore,
    now: Duration,
}

impl Meeting {
    fn new() -> Self {
        Self { core: HostCore::new(3), now: Duration::ZERO }
    }

    fn join(&mut self, connection: ConnectionId, join: Join) -> Vec<HostOutput> {
        let mut out = Vec::new();
        let rank = join.rank;
        self.core.on_message(self.now, connection, rank, ToHost::Join(Box::new(join)), &mut out);
        out
    }

    fn agree(&mut self, connection: ConnectionId, round: u32, bytes: &[u8]) -> Vec<HostOutput> {
        let mut out = Vec::new();
        let message = ToHost::Agree { round, bytes: bytes.to_vec() };
        self.core.on_message(self.now, connection, 0, message, &mut out);
        out
    }

    fn close(&mut self, connection: ConnectionId) -> Vec<HostOutput> {
        let mut out = Vec::new();
        self.core.on_closed(connection, &mut out);
        out
    }

    /// Connections `base..base + 3` join with `last` and confirm; the epoch they are given.
    fn form(&mut self, base: ConnectionId, last: Option<u32>) -> u32 {
        let mut out = Vec::new();
        for rank in 0..3u8 {
            let join = Join { last_epoch: last, ..request(rank) };
            out = self.join(base + u64::from(rank), join);
        }
        let epoch = out.iter().find_map(|output| match output {
            HostOutput::Send(_, ToMember::Welcome { epoch, .. }) => Some(*epoch),
            _ => None,
        });
        for rank in 0..3 {
            self.agree(base + rank, 0, b"");
        }
        epoch.unwrap()
    }
}

fn refusals(out: &[HostOutput]) -> Vec<(ConnectionId, &Refusal)> {
    let refused = |output: &HostOutput| match output {
        HostOutput::Send(to, ToMember::Refused(refusal)) => Some((*to, refusal.clone())),
        _ => None,
    };
    assert_eq!(
        out.iter().filter_map(refused).count(),
        out.iter().filter(|output| matches!(output, HostOutput::Close(_))).count()
    );
    out.iter()
        .filter_map(|output| match output {
            HostOutput::Send(to, ToMember::Refused(refusal)) => Some((*to, refusal)),
            _ => None,
        })
        .collect()
}

#[test]
fn all_ranks_are_welcomed_with_all_data_in_order() {
    let mut meeting = Meeting::new();
    assert!(meeting.join(12, request(2)).is_empty() && meeting.join(10, request(0)).is_empty());
    let out = meeting.join(11, request(1));
    assert_eq!(out.len(), 3);
    let HostOutput::Send(10, ToMember::Welcome { epoch, members }) = &out[0] else {
        panic!("{out:?}")
    };
    assert_eq!(*epoch, 1);
    let seen: Vec<_> = members.iter().map(|m| (m.rank, m.address.port(), m.blob.clone())).collect();
    assert_eq!(seen, [(0, 1000, vec![0]), (1, 1001, vec![1]), (2, 1002, vec![2])]);
}

#[test]
fn agreements_gather_by_rank_again_and_again() {
    let mut meeting = Meeting::new();
    meeting.form(10, None);
    for round in 1..4 {
        assert!(
            meeting.agree(12, round, b"c").is_empty() && meeting.agree(10, round, b"a").is_empty()
        );
        let out = meeting.agree(11, round, b"b");
        let parts = vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
        assert_eq!(out[1], HostOutput::Send(11, ToMember::Agreed { round, parts }));
    }
}

#[test]
fn reforming_raises_the_epoch_beyond_all_reports() {
    let mut meeting = Meeting::new();
    assert_eq!(meeting.form(10, None), 1);
    assert_eq!(meeting.form(20, Some(1)), 2);
    // Rank 0 restarted: its meeting point knows nothing, the others do.
    let mut meeting = Meeting::new();
    meeting.join(30, request(0));
    meeting.join(31, Join { last_epoch: Some(7), ..request(1) });
    let out = meeting.join(32, Join { last_epoch: Some(7), ..request(2) });
    assert!(matches!(out[0], HostOutput::Send(30, ToMember::Welcome { epoch: 8, .. })));
}

#[test]
fn an_old_epoch_is_refused_whichever_comes_first() {
    let mut meeting = Meeting::new();
    meeting.form(10, Some(4));
    meeting.close(12);
    let old = Join { last_epoch: Some(4), ..request(2) };
    let out = meeting.join(20, old);
    let expected = Refusal::OldEpoch { rank: 2, reported: 4, current: 5 };
    assert_eq!(refusals(&out), [(20, &expected)]);
    let mut meeting = Meeting::new();
    meeting.join(1, Join { last_epoch: Some(4), ..request(1) });
    let out = meeting.join(2, Join { last_epoch: Some(6), ..request(2) });
    let expected = Refusal::OldEpoch { rank: 1, reported: 4, current: 6 };
    assert_eq!(refusals(&out), [(1, &expected)]);
}

#[test]
fn a_taken_number_is_refused_and_its_owner_keeps_it() {
    let mut meeting = Meeting::new();
    meeting.join(1, request(1));
    let out = meeting.join(2, Join { instance: [9, 9], ..request(1) });
    let expected = Refusal::DuplicateRank { rank: 1, host: "h1".into() };
    assert_eq!(refusals(&out), [(2, &expected)]);
    // The same process takes its own place.
    assert_eq!(meeting.join(3, request(1)), [HostOutput::Close(1)]);
    // A dead owner's number is free.
    meeting.close(3);
    assert!(meeting.join(4, Join { instance: [9, 9], ..request(1) }).is_empty());
    // Also once the group is formed.
    meeting.close(4);
    meeting.form(10, None);
    let out = meeting.join(20, Join { instance: [9, 9], ..request(1) });
    assert_eq!(refusals(&out), [(20, &expected)]);
}

#[test]
fn a_difference_refuses_those_present_at_once_and_those_late_on_arrival() {
    let mut meeting = Meeting::new();
    meeting.join(10, request(0));
    let mut other = request(2);
    other.config.insert("model".into(), "cd".into());
    let out = meeting.join(12, other.clone());
    let refused = refusals(&out);
    assert_eq!(refused.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [10, 12]);
    assert_eq!(
        refused[0].1.to_string(),
        "model differs: rank 0 has \"ab\", rank 2 has \"cd\"; give it one value on all ranks and start them again"
    );
    let expected = refused[0].1.clone();
    assert_eq!(refusals(&meeting.join(11, request(1))), [(11, &expected)]);
    // All were told: started again with one configuration, they form.
    assert_eq!(meeting.form(20, None), 1);
    // A key that one rank lacks is a difference as well.
    let mut meeting = Meeting::new();
    meeting.join(10, request(0));
    other.config.clear();
    let out = meeting.join(12, other);
    assert!(refusals(&out)[1].1.to_string().contains("rank 2 has it not set"));
}

#[test]
fn sizes_that_differ_refuse_everybody() {
    let mut meeting = Meeting::new();
    meeting.join(10, request(0));
    let out = meeting.join(11, Join { size: 4, ..request(1) });
    assert_eq!(refusals(&out).len(), 2);
    assert!(refusals(&out)[0].1.to_string().contains("started with 4, rank 0 hosts 3"));
    assert_eq!(refusals(&meeting.join(12, request(2))).len(), 1);
}

#[test]
fn loopback_addresses_are_for_one_machine_only() {
    let mut meeting = Meeting::new();
    let elsewhere = Join { host_id: "two".into(), ip: "10.0.0.2".parse().unwrap(), ..request(1) };
    meeting.join(10, request(0));
    let out = meeting.join(11, elsewhere);
    let refused = refusals(&out);
    assert_eq!(refused.len(), 2);
    assert!(
        refused[0]
            .1
            .to_string()
            .starts_with("rank 0 (host h0) advertises 127.0.0.1, which rank 1 on host h1"),
        "{}",
        refused[0].1
    );
}

#[test]
fn at_the_deadline_the_missing_and_the_present_are_named() {
    let mut meeting = Meeting::new();
    meeting.join(10, request(0));
    meeting.now = Duration::from_secs(4);
    meeting.join(12, request(2));
    let mut out = Vec::new();
    meeting.core.tick(Duration::from_millis(9999), &mut out);
    assert!(out.is_empty());
    meeting.core.tick(Duration::from_secs(10), &mut out);
    let refused = refusals(&out);
    assert_eq!(refused[0].0, 10);
    assert_eq!(
        refused[0].1.to_string(),
        "ranks 1 did not come within 10.0 s; arrived: rank 0 (host h0), rank 2 (host h2)"
    );
    assert_eq!(refused.len(), 1, "rank 2 may wait until its own deadline");
}

#[test]
fn a_member_that_leaves_ends_the_agreement_for_all() {
    let mut meeting = Meeting::new();
    meeting.form(10, None);
    meeting.agree(10, 1, b"x");
    let left = ToMember::MemberLeft { rank: 2, host: "h2".into() };
    assert_eq!(meeting.close(12), [HostOutput::Send(10, left.clone())]);
    assert_eq!(meeting.agree(11, 1, b"y"), [HostOutput::Send(11, left)]);
}

#[test]
fn a_rank_that_lies_about_its_number_is_refused() {
    let mut meeting = Meeting::new();
    let mut out = Vec::new();
    let join = ToHost::Join(Box::new(request(1)));
    meeting.core.on_message(Duration::ZERO, 5, 2, join, &mut out);
    assert!(matches!(refusals(&out)[..], [(5, Refusal::Malformed { .. })]));
    let out = meeting.join(6, Join { size: 3, ..request(7) });
    assert_eq!(refusals(&out), [(6, &Refusal::RankOutOfRange { rank: 7, size: 3 })]);
}

#[test]
fn who_is_not_there_can_be_asked() {
    let mut meeting = Meeting::new();
    assert_eq!(meeting.core.missing(meeting.now), None);
    meeting.join(10, request(0));
    meeting.now = Duration::from_secs(3);
    meeting.join(12, request(2));
    let now = Duration::from_secs(12);
    assert_eq!(meeting.core.missing(now), Some((RankSet::one(1), now)));
    meeting.join(11, request(1));
    assert_eq!(meeting.core.missing(now), None);
}
