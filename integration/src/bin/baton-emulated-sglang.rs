//! An emulated SGLang as a process of its own.

use std::process::ExitCode;

use anyhow::Result;
use baton_integration::emulated::run_process;
use baton_integration::emulated::sglang::{Args, EmulatedSglang};
use clap::Parser;

fn main() -> ExitCode {
    run_process(|| async {
        let args = Args::parse();
        let engine = EmulatedSglang::at(args.config()?, args.http())?;
        engine.start().await;
        println!("emulated SGLang at http://{}", args.http());
        Result::Ok(engine)
    })
}
