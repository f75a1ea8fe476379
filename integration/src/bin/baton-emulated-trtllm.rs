//! An emulated TensorRT-LLM as a process of its own.

use std::process::ExitCode;

use anyhow::Result;
use baton_integration::emulated::run_process;
use baton_integration::emulated::trtllm::{Args, EmulatedTrtllm};
use clap::Parser;

fn main() -> ExitCode {
    run_process(|| async {
        let args = Args::parse();
        let engine = EmulatedTrtllm::at(args.config()?, args.http())?;
        engine.start().await;
        println!("emulated TensorRT-LLM at http://{}", args.http());
        Result::Ok(engine)
    })
}
