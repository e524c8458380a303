//! Bytes between two ranks: regions, puts, flags, rails and relays.
