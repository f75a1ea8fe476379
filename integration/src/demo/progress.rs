//! How far a load is: a bar on a terminal, a few plain lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use super::load::Progress;

/// Shows a load until its sender is dropped.
pub async fn show(title: &str, total: usize, mut progress: watch::Receiver<Progress>) {
    let bar = std::io::stderr().is_terminal().then(|| bar(title, total));
    let mut printed = 0;
    while progress.changed().await.is_ok() {
        let Progress { done, failed } = *progress.borrow_and_update();
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
            bar.set_message(format!("{failed} failed"));
        } else if done * 4 / total.max(1) > printed {
            printed = done * 4 / total.max(1);
            eprintln!("{title}: {done}/{total} requests, {failed} failed");
        }
    }
    if let Some(bar) = bar {
        bar.abandon();
    }
}

fn bar(title: &str, total: usize) -> ProgressBar {
    let template = "{prefix} [{bar:30}] {pos}/{len} requests, {msg} {elapsed}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total as u64)
        .with_prefix(title.to_owned())
        .with_message("0 failed")
        .with_style(style)
}
