//! Logging is set up once for a process.

use observe::log::{LogError, init};

#[test]
fn the_second_time_is_an_error() {
    assert!(init("").is_ok());
    assert!(matches!(init(""), Err(LogError::Twice)));
}
