//! SGLang's own hook: `--sidecar MODULE` has SGLang start a Python process that calls the module's `main(argv)`
//! (`entrypoints/sidecar.py`, 0.5.23). The wheel's module is how this sidecar gets there.
//!
//! SGLang tells where its gRPC server listens and not where its HTTP server does, which is what this sidecar speaks to. The
//! parent's command line says it.

use baton_daemon::Exit;
use baton_sidecar_core::command::EngineCommand;
use tokio_util::sync::CancellationToken;

use crate::args::SglangArgs;
use crate::attach::DEFAULT_PORT;

/// Where SGLang says that its gRPC server listens, on this host.
const ENDPOINT: &str = "SGLANG_GRPC_ENDPOINT";

/// Runs the sidecar beside the engine that started this process, until it is asked to stop.
pub async fn run(args: SglangArgs, stop: CancellationToken) -> Result<(), Exit> {
    let endpoint = std::env::var(ENDPOINT).ok();
    let args = beside(args, endpoint.as_deref(), parent)?;
    crate::run(args, stop).await
}

/// Arguments that say which engine.
fn beside(
    mut args: SglangArgs,
    endpoint: Option<&str>,
    parent: impl FnOnce() -> Option<EngineCommand>,
) -> Result<SglangArgs, Exit> {
    if !args.command.is_empty() {
        return Err(Exit::usage(
            "SGLang has started this sidecar: there is no engine to launch, leave out what follows --",
        ));
    }
    if args.engine.is_none() {
        let host = endpoint.and_then(host_of);
        let port = parent().as_ref().and_then(port_of);
        let url = host
            .zip(port)
            .map(|(host, port)| format!("http://{host}:{port}"));
        let unknown = || {
            Exit::usage(
                "where SGLang's HTTP server listens cannot be seen from here: say --engine http://127.0.0.1:PORT",
            )
        };
        args.engine = Some(url.ok_or_else(unknown)?);
    }
    Ok(args)
}

fn host_of(endpoint: &str) -> Option<String> {
    let endpoint: http::Uri = endpoint.parse().ok()?;
    endpoint.host().map(str::to_owned)
}

/// A command line that asks for a sidecar is SGLang's own, and what it does not say is as SGLang has it by itself. Unless a
/// file of settings goes with it, or a program has started SGLang some other way.
fn port_of(command: &EngineCommand) -> Option<String> {
    let complete = command.flag("sidecar").is_some() && command.flag("config").is_none();
    let usual = complete.then(|| DEFAULT_PORT.to_owned());
    command.flag("port").or(usual)
}

/// The command of the process that has started this one.
fn parent() -> Option<EngineCommand> {
    let parent = std::os::unix::process::parent_id();
    let line = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    let words = line.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    Some(EngineCommand::new(words.collect()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const ENGINE: &str = "http://127.0.0.1:40000";

    fn engine(
        flags: &[&str],
        endpoint: Option<&str>,
        parent: Option<&str>,
    ) -> Result<String, String> {
        let line = ["baton.sglang"].iter().chain(flags);
        let args = SglangArgs::try_parse_from(line).unwrap();
        let words = |line: &str| EngineCommand::new(line.split(' ').map(str::to_owned).collect());
        let args = beside(args, endpoint, || parent.map(words));
        args.map(|args| args.engine.unwrap())
            .map_err(|exit| exit.to_string())
    }

    #[test]
    fn the_engine_is_where_its_command_line_says() {
        for (parent, url) in [
            (
                "python -m sglang.launch_server --sidecar baton.sglang --port 31000",
                "http://127.0.0.1:31000",
            ),
            (
                "sglang serve --sidecar=baton.sglang",
                "http://127.0.0.1:30000",
            ),
            (
                "python server.py --port=8000 --config settings.yaml",
                "http://127.0.0.1:8000",
            ),
        ] {
            assert_eq!(engine(&[], Some(ENGINE), Some(parent)), Ok(url.to_owned()));
        }
        let v6 = engine(&[], Some("http://[::1]:40000"), Some("x --port 1"));
        assert_eq!(v6, Ok("http://[::1]:1".to_owned()));
    }

    #[test]
    fn nothing_is_guessed() {
        let complete = "sglang serve --sidecar baton.sglang";
        for (endpoint, parent) in [
            (Some(ENGINE), Some("python my_server.py")),
            (
                Some(ENGINE),
                Some("sglang serve --sidecar baton.sglang --config settings.yaml"),
            ),
            (Some(ENGINE), None),
            (None, Some(complete)),
            (Some("not an address"), Some(complete)),
        ] {
            let refused = engine(&[], endpoint, parent).unwrap_err();
            assert!(refused.contains("--engine http://"), "{refused}");
        }
    }

    #[test]
    fn what_is_said_goes_before_what_is_seen() {
        let flags = ["--engine", "http://127.0.0.1:5"];
        assert_eq!(
            engine(&flags, Some(ENGINE), Some("x --port 1")),
            Ok("http://127.0.0.1:5".to_owned())
        );
        let refused = engine(&["--", "python"], Some(ENGINE), None).unwrap_err();
        assert!(refused.contains("no engine to launch"), "{refused}");
    }
}
