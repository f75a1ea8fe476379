//! The outermost shell of a binary: parse, build, run, and an exit code that says what happened.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

use clap::Parser;
use tokio_util::sync::CancellationToken;

use crate::config::{self, Common};
use crate::{files, log, signal};

/// Why a daemon ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Exit {
    /// The configuration cannot work: exit code 64, one sentence.
    #[error("{0}")]
    Usage(String),
    /// Something failed at run time: exit code 1, one sentence.
    #[error("{0}")]
    Failure(String),
    /// The supervised process ended with this code; the daemon ends as it did.
    #[error("the engine ended with code {0}")]
    Child(u8),
}

impl Exit {
    /// A configuration that cannot work.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self::Usage(sentence.into())
    }

    /// A failure at run time.
    pub fn failure(sentence: impl Into<String>) -> Self {
        Self::Failure(sentence.into())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 64,
            Self::Failure(_) => 1,
            Self::Child(code) => *code,
        }
    }
}

/// Arguments of a daemon.
pub trait Arguments: Parser {
    /// The part that all daemons share.
    fn common(&self) -> &Common;
}

/// Runs a daemon with the arguments of this process until it ends ([`with_arguments`]).
pub fn daemon<A, F>(body: impl FnOnce(A, CancellationToken) -> F) -> ExitCode
where
    A: Arguments,
    F: Future<Output = Result<(), Exit>>,
{
    ExitCode::from(with_arguments(std::env::args_os(), body))
}

/// Parses a command line, the program's name first, starts logs and the runtime, and runs `body` until it ends. `body` is
/// given a token that is cancelled when the process is asked to stop. Answers the exit code, for a process whose end is not
/// this crate's to decide.
pub fn with_arguments<A, F>(
    command_line: impl IntoIterator<Item = OsString>,
    body: impl FnOnce(A, CancellationToken) -> F,
) -> u8
where
    A: Arguments,
    F: Future<Output = Result<(), Exit>>,
{
    let arguments = match config::parse::<A>(command_line) {
        Ok(arguments) => arguments,
        Err(config::Stop::Show(text)) => {
            print_out(&text);
            return 0;
        }
        Err(config::Stop::Refuse(sentence)) => return end(&Exit::Usage(sentence)),
    };
    if let Err(exit) = log::start(arguments.common()) {
        return end(&exit);
    }
    files::raise_limit();
    match in_runtime(arguments, body) {
        Ok(()) => 0,
        Err(exit) => end(&exit),
    }
}

fn in_runtime<A, F>(arguments: A, body: impl FnOnce(A, CancellationToken) -> F) -> Result<(), Exit>
where
    F: Future<Output = Result<(), Exit>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failure(format!("the runtime could not start: {error}")))?;
    let outcome = runtime.block_on(async {
        let stop = signal::stop_token()
            .map_err(|error| Exit::failure(format!("signals cannot be handled: {error}")))?;
        body(arguments, stop).await
    });
    // Anything still blocked in a thread (a socket being closed) must not hold the process up.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

#[expect(
    clippy::print_stdout,
    reason = "help and version belong on standard output"
)]
fn print_out(text: &str) {
    print!("{text}");
}

#[expect(
    clippy::print_stderr,
    reason = "the last sentence must be seen whatever the log filter is"
)]
fn end(exit: &Exit) -> u8 {
    if !matches!(exit, Exit::Child(_)) {
        eprintln!("error: {exit}");
    }
    exit.code()
}
