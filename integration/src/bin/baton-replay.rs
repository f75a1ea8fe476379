//! `baton-replay`: parse, run, and an exit code that says what happened.

use std::io::{self, BufWriter, ErrorKind};
use std::process::ExitCode;

use baton_integration::replay::{self, Args, Failure};
use clap::Parser;

/// Exit code of a command line that cannot work, the same as the daemons'.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(message) => {
            let is_mistake = message.use_stderr();
            // There is nobody left to tell that the terminal is gone.
            let _ = message.print();
            return if is_mistake {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match replay::run(&args, &mut out, &mut io::stderr()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough: `baton-replay … | head`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
