//! Being asked to stop.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT. A second one ends the process at once, as it would without
/// us: an operator who insists is not argued with.
pub fn stop_token() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = token.clone();
    tokio::spawn(async move {
        let mut asked = false;
        loop {
            let (name, code) = tokio::select! {
                Some(()) = terminate.recv() => ("SIGTERM", 143),
                Some(()) = interrupt.recv() => ("SIGINT", 130),
                else => return,
            };
            if asked {
                tracing::warn!(signal = name, "asked twice, stopping at once");
                exit_now(code);
            }
            asked = true;
            tracing::info!(signal = name, "stopping");
            stop.cancel();
        }
    });
    Ok(token)
}

#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "the operator asked twice"
)]
fn exit_now(code: i32) -> ! {
    std::process::exit(code)
}
