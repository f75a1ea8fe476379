//! The minimal relay that `cargo xtask bench overhead` compares Baton with.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use baton_integration::bench::relay::{Hop, serve};
use clap::Parser;
use http::Uri;

/// The least that can carry a benchmark's requests over the same hops as Baton. Not for anything else: it trusts
/// everybody, never retries and waits for ever.
///
/// With --to it passes requests on as they are. With --prefill and --decode it asks the one for KV and the other for the
/// answer.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Whom to pass requests on to.
    #[arg(long, value_name = "IP:PORT", conflicts_with_all = ["prefill", "decode"], required_unless_present = "prefill")]
    to: Option<SocketAddr>,
    /// Whom to ask for KV.
    #[arg(long, value_name = "IP:PORT", requires = "decode")]
    prefill: Option<SocketAddr>,
    /// Whom to ask for the answer.
    #[arg(long, value_name = "IP:PORT", requires = "prefill")]
    decode: Option<SocketAddr>,
}

impl Args {
    fn hop(&self) -> Result<Hop> {
        match (self.to, self.prefill, self.decode) {
            (Some(to), _, _) => Ok(Hop::On(uri(to)?)),
            (None, Some(prefill), Some(decode)) => Ok(Hop::Split {
                prefill: uri(prefill)?,
                decode: uri(decode)?,
            }),
            _ => anyhow::bail!("say where requests go: --to, or --prefill and --decode"),
        }
    }
}

fn uri(peer: SocketAddr) -> Result<Uri> {
    let uri = format!("http://{peer}/v1/chat/completions").parse();
    uri.with_context(|| format!("{peer} makes no URI"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let run = || -> Result<()> {
        let hop = args.hop()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(serve(args.listen, hop))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
