//! An emulated vLLM as a process of its own.

use std::process::ExitCode;

use anyhow::Result;
use baton_integration::emulated::vllm::{Args, EmulatedVllm};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // One thread, as one engine core has: what it costs can be told from what stands before it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = EmulatedVllm::at(args.config()?, args.http(), args.side_channel())?;
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        engine.start().await;
        println!("emulated vLLM at http://{}", args.http());
        tokio::select! {
            of = engine.died() => anyhow::bail!("the engine died: {of}"),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        engine.kill().await;
        Ok(())
    })
}
