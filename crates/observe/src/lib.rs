//! Metrics, health, events and the flight recorder of a rank.
