//! One suite of tests that every [`fabric::Device`] must pass: the contract of `device.rs`.
//!
//! A transport joins with a [`Transport`](bed::Transport) and a line `contract!` below. What a
//! transport cannot show is excluded in [`EXCLUSIONS`], with the reason.
#![allow(clippy::unwrap_used)]

mod bed;
mod cases;
mod faults;
mod rig;

use bed::{
    DoubleTransport, EarlyFlags, Repeats, ShmTransport, SimTransport, TcpTransport, Transport,
    VerbsTransport,
};
use rig::Maker;

/// Transport, case, and why the case says nothing there.
const EXCLUSIONS: &[(&str, &str, &str)] = &[
    ("shm", "a_damaged_frame_ends_its_rail", "it has no frames"),
    (
        "verbs over a double",
        "a_damaged_frame_ends_its_rail",
        "packets are made and checked by the device",
    ),
    ("verbs", "a_damaged_frame_ends_its_rail", "packets are made and checked by the device"),
    ("shm", "a_failed_rail_is_made_anew_and_carries_again", "it makes no rail anew"),
    ("tcp", "a_failed_rail_is_made_anew_and_carries_again", "it makes no rail anew"),
];

macro_rules! with_cases {
    ($then:ident $($argument:tt)*) => {
        $then! {
            $($argument)*
            cases::writes_land_in_order,
            cases::a_large_write_is_whole_when_its_flag_shows,
            cases::a_flag_travels_alone,
            cases::head_and_body_are_contiguous,
            cases::numbers_wrap,
            cases::a_full_queue_pair_recovers,
            cases::a_full_rail_does_not_hold_up_the_other,
            cases::done_means_landed_and_the_body_is_free,
            cases::both_ends_of_the_region_can_be_written,
            cases::outside_is_refused_without_effect,
            cases::there_is_no_queue_pair_without_a_cable,
            cases::all_to_all_arrives_whole,
            faults::a_cut_is_told_once_at_both_ends,
            faults::a_cut_from_both_ends_is_told_once,
            faults::reposted_writes_land_once,
            faults::bodies_are_not_read_after_their_rail_went_down,
            faults::a_damaged_frame_ends_its_rail,
            faults::a_failed_rail_is_made_anew_and_carries_again,
            faults::a_frozen_peer_blocks_nobody
        }
    };
}

macro_rules! contract {
    ($module:ident $transport:ident $reason:tt $($group:ident::$case:ident),*) => {
        mod $module {
            $(contract!(@test $transport $reason $group::$case);)*
        }
    };
    (@test $transport:ident [$($reason:literal)?] $group:ident::$case:ident) => {
        #[test]
        $(#[ignore = $reason])?
        fn $case() {
            crate::run::<crate::$transport>(stringify!($case), crate::$group::$case);
        }
    };
}

macro_rules! names {
    ($($group:ident::$case:ident),*) => { [$(stringify!($case)),*] };
}

with_cases!(contract sim SimTransport []);
with_cases!(contract shm ShmTransport []);
with_cases!(contract tcp TcpTransport []);
with_cases!(contract double DoubleTransport []);
with_cases!(contract verbs VerbsTransport ["needs an RDMA device: lab/roce suite"]);

fn run<T: Transport>(name: &str, case: fn(&Maker)) {
    let excluded = EXCLUSIONS.iter().find(|(on, what, _)| *on == T::NAME && *what == name);
    if let Some((.., reason)) = excluded {
        eprintln!("{name} says nothing on {}: {reason}", T::NAME);
        return;
    }
    for variant in 0..T::VARIANTS {
        let failed = OnPanic { transport: T::NAME, variant };
        case(&Maker { variant, build: T::build });
        std::mem::forget(failed);
    }
}

/// Says which variant failed.
struct OnPanic {
    transport: &'static str,
    variant: u64,
}

impl Drop for OnPanic {
    fn drop(&mut self) {
        eprintln!("the failure was on {} in variant {}", self.transport, self.variant);
    }
}

#[test]
fn every_exclusion_names_a_case() {
    let names = with_cases!(names);
    for (_, case, reason) in EXCLUSIONS {
        assert!(names.contains(case), "there is no case {case}");
        assert!(!reason.is_empty());
    }
}

#[test]
#[should_panic(expected = "is not whole")]
fn the_suite_finds_flags_that_come_before_their_bytes() {
    run::<EarlyFlags>("writes_land_in_order", cases::writes_land_in_order);
}

#[test]
#[should_panic(expected = "reposted writes")]
fn the_suite_finds_writes_that_land_twice() {
    run::<Repeats>("reposted_writes_land_once", faults::reposted_writes_land_once);
}
