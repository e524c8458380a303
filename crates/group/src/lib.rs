//! Ranks together: rendezvous, collectives, beacons, patience, verdicts, recovery.
