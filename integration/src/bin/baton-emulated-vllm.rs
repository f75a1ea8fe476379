//! An emulated vLLM as a process of its own.

use std::process::ExitCode;

use anyhow::Result;
use baton_integration::emulated::run_process;
use baton_integration::emulated::vllm::{Args, EmulatedVllm};
use clap::Parser;

fn main() -> ExitCode {
    run_process(|| async {
        let args = Args::parse();
        let engine = EmulatedVllm::at(args.config()?, args.http(), args.side_channel())?;
        engine.start().await;
        println!("emulated vLLM at http://{}", args.http());
        Result::Ok(engine)
    })
}
