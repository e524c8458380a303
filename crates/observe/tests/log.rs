//! Logging is set up once for a process.

use observe::log::{LogError, init};

#[test]
fn the_second_time_is_an_error() {
    assert!(init(None).is_ok());
    assert!(matches!(init(None), Err(LogError::Twice)));
}
