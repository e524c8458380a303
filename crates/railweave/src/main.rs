//! The `railweave` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    railweave::cli::run(std::env::args_os(), railweave::rank::body)
}
