//! Exit codes and last words. This binary is its own harness: started again with `BATON_TEST_AS` it *is* the router, the
//! sidecar or an engine to be launched, with the same shell around it that the real binaries have.

#![expect(
    clippy::unwrap_used,
    reason = "a test judges by panicking, and here no attribute says which function is one"
)]

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use baton_integration::emulated::vllm::{Config, EmulatedVllm};
use baton_integration::ports;
use baton_router::args::RouterArgs;
use baton_sidecar_vllm::args::VllmArgs;
use baton_sidecar_vllm::engine::VllmEngine;

const AS: &str = "BATON_TEST_AS";
const TOKEN: &str = "integration-fleet-token";
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("fake-engine") {
        return engine();
    }
    match std::env::var(AS).as_deref() {
        Ok("router") => {
            baton_daemon::run::daemon(|args: RouterArgs, stop| baton_router::run::run(args, stop))
        }
        Ok("sidecar") => baton_daemon::run::daemon(|args: VllmArgs, stop| async move {
            let (config, launch) = baton_sidecar_vllm::attach::plan(&args)?;
            let engine = VllmEngine::new(config)?;
            baton_sidecar_core::run::run(engine, args.core, launch, stop).await
        }),
        _ => tests(),
    }
}

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    (
        "a_configuration_that_cannot_work_is_64_and_one_sentence",
        a_configuration_that_cannot_work_is_64_and_one_sentence,
    ),
    (
        "a_port_that_is_taken_is_1_and_one_sentence",
        a_port_that_is_taken_is_1_and_one_sentence,
    ),
    (
        "help_and_version_are_0_on_standard_output",
        help_and_version_are_0_on_standard_output,
    ),
    (
        "asked_to_stop_both_end_with_0",
        asked_to_stop_both_end_with_0,
    ),
    (
        "asked_twice_a_daemon_ends_at_once",
        asked_twice_a_daemon_ends_at_once,
    ),
    (
        "a_sidecar_ends_as_its_engine_ends",
        a_sidecar_ends_as_its_engine_ends,
    ),
    (
        "a_launched_engine_serves_and_ends_with_its_sidecar",
        a_launched_engine_serves_and_ends_with_its_sidecar,
    ),
    (
        "an_engine_that_never_starts_is_given_up",
        an_engine_that_never_starts_is_given_up,
    ),
];

/// What `cargo test` and `cargo nextest` need of a harness.
#[expect(clippy::print_stdout, reason = "a harness talks to whoever runs it")]
fn tests() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if asked("--list") {
        for (name, _) in TESTS.iter().filter(|_| !asked("--ignored")) {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for (name, test) in TESTS {
        let fits = |filter: &&String| {
            if asked("--exact") {
                *name == filter.as_str()
            } else {
                name.contains(filter.as_str())
            }
        };
        if wanted.is_empty() || wanted.iter().any(fits) {
            test();
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

/// A daemon with nothing in its environment but this.
fn daemon(role: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(flags)
        .env_clear()
        .env(AS, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for it to end.
fn ended(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        pause();
    }
    child.wait_with_output().unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "no runtime here, and no clock to advance"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        pause();
    }
}

fn listens(address: SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// The last line is one sentence that has this in it.
#[track_caller]
fn last_words(output: &Output, code: i32, part: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "one sentence: {text}");
    assert!(errors[0].contains(part), "{part:?} in {text}");
    assert!(!text.contains("panicked"), "{text}");
}

const PULL: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_producer"}"#;

/// Who is given which flags, and what the refusal must name.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("router", &[], "no fleet token"),
    ("router", &["--token", "short"], "at least 16"),
    (
        "router",
        &["--token", "sixteen letters \u{e9}"],
        "printable",
    ),
    ("router", &["--tokn", "x"], "--tokn"),
    ("router", &["--listen", "localhost"], "localhost"),
    ("router", &["--force", "both"], "both"),
    ("router", &["--request-timeout-s", "soon"], "soon"),
    ("router", &["--max-requests", "-1"], "-1"),
    (
        "router",
        &["--config", "/nonexistent/baton.toml"],
        "cannot be read",
    ),
    ("router", &["--log", "a=b=c", "--token", TOKEN], "filter"),
    ("router", &["stray"], "stray"),
    ("sidecar", &["--token", TOKEN], "which engine"),
    ("sidecar", &["--engine", "https://h:1"], "must look like"),
    ("sidecar", &["--engine", "h"], "must look like"),
    (
        "sidecar",
        &["--engine", "http://h:1", "--", "vllm"],
        "not both",
    ),
    ("sidecar", &["--engine", "http://h:1"], "no fleet token"),
    (
        "sidecar",
        &["--engine", "http://h:1", "--kv-transfer-config", "{"],
        "not what vLLM takes",
    ),
    (
        "sidecar",
        &[
            "--engine",
            "http://h:1",
            "--kv-transfer-config",
            PULL,
            "--side-channel",
            "h",
        ],
        "HOST:PORT",
    ),
    ("sidecar", &["--worker-id", "a b"], "worker id"),
    ("sidecar", &["--topology", "zone"], "zone=a"),
    (
        "sidecar",
        &["--token", TOKEN, "--", "/nonexistent/vllm"],
        "cannot be started",
    ),
];

fn a_configuration_that_cannot_work_is_64_and_one_sentence() {
    for &(role, flags, part) in REFUSED {
        let output = ended(daemon(role, flags).spawn().unwrap());
        last_words(&output, 64, part);
    }
    for (role, bad) in [
        ("sidecar", "ftp://router:8000"),
        ("sidecar", "router:8000"),
        ("sidecar", "http://"),
    ] {
        let flags = [
            "--engine",
            "http://127.0.0.1:1",
            "--token",
            TOKEN,
            "--listen",
            "127.0.0.1:0",
            "--router",
            bad,
        ];
        let output = ended(daemon(role, &flags).spawn().unwrap());
        last_words(&output, 64, bad);
    }
    for (text, part) in [
        ("lissten = \"127.0.0.1:1\"\n", "unknown key \"lissten\""),
        ("[listen]\nport = 1\n", "listen must be"),
        ("listen = \n", "not TOML"),
        ("force = \"both\"\n", "both"),
        ("config = \"other.toml\"\n", "unknown key"),
    ] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let output = ended(
            daemon("router", &["--config", path, "--token", TOKEN])
                .spawn()
                .unwrap(),
        );
        last_words(&output, 64, part);
        let output = ended(
            daemon("router", &["--token", TOKEN])
                .env("BATON_CONFIG", path)
                .spawn()
                .unwrap(),
        );
        last_words(&output, 64, part);
    }
    let output = ended(
        daemon("router", &[])
            .env("BATON_TOKEN", TOKEN)
            .env("BATON_FORCE", "both")
            .spawn()
            .unwrap(),
    );
    last_words(&output, 64, "both");
}

fn a_port_that_is_taken_is_1_and_one_sentence() {
    let address = ports::free();
    let _taken = std::net::TcpListener::bind(address).unwrap();
    let (listen, engine) = (address.to_string(), "http://127.0.0.1:1");
    let router = daemon("router", &["--token", TOKEN, "--listen", &listen])
        .spawn()
        .unwrap();
    last_words(&ended(router), 1, "cannot listen");
    let sidecar = daemon(
        "sidecar",
        &["--token", TOKEN, "--listen", &listen, "--engine", engine],
    )
    .spawn()
    .unwrap();
    last_words(&ended(sidecar), 1, "cannot listen");
}

fn help_and_version_are_0_on_standard_output() {
    for (role, flag, part) in [
        ("router", "--help", "--force"),
        ("router", "--version", "baton-router"),
        ("sidecar", "--help", "--kv-transfer-config"),
        ("sidecar", "--version", "baton-sidecar-vllm"),
    ] {
        let output = ended(
            daemon(role, &[flag])
                .env("BATON_TOKEN", "must-not-be-shown-at-all")
                .spawn()
                .unwrap(),
        );
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0));
        assert!(text.contains(part), "{text}");
        assert!(
            !text.contains("must-not-be-shown"),
            "secrets are not shown: {text}"
        );
        assert!(output.stderr.is_empty());
    }
}

fn asked_to_stop_both_end_with_0() {
    for name in ["TERM", "INT"] {
        let (router_at, sidecar_at) = (ports::free(), ports::free());
        let router = daemon(
            "router",
            &["--token", TOKEN, "--listen", &router_at.to_string()],
        )
        .spawn()
        .unwrap();
        let url = format!("http://{router_at}");
        let sidecar = daemon(
            "sidecar",
            &[
                "--token",
                TOKEN,
                "--listen",
                &sidecar_at.to_string(),
                "--engine",
                "http://127.0.0.1:1",
                "--router",
                &url,
            ],
        )
        .spawn()
        .unwrap();
        until("both to listen", || {
            listens(router_at) && listens(sidecar_at)
        });
        for child in [sidecar, router] {
            let asked = Instant::now();
            signal(&child, name);
            let output = ended(child);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(
                asked.elapsed() < Duration::from_secs(10),
                "it took {:?}",
                asked.elapsed()
            );
        }
    }
}

fn asked_twice_a_daemon_ends_at_once() {
    let address = ports::free();
    let router = daemon(
        "router",
        &["--token", TOKEN, "--listen", &address.to_string()],
    )
    .spawn()
    .unwrap();
    until("it to listen", || listens(address));
    // A request that does not end keeps it from stopping by itself.
    let mut client =
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).unwrap();
    client
        .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    until("the request to be in", || {
        metric(address, "baton_router_in_flight 1")
    });
    signal(&router, "TERM");
    until("it to let nobody in", || !listens(address));
    signal(&router, "TERM");
    assert_eq!(ended(router).status.code(), Some(143));
}

fn metric(address: SocketAddr, line: &str) -> bool {
    use std::io::Read;
    let mut stream =
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    let _ = stream.read_to_string(&mut page);
    page.lines().any(|found| found == line)
}

/// An engine's process: `fake-engine --exit CODE`, or what a sidecar makes of `fake-engine --port P --kv-transfer-config ...`.
fn engine() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1).cloned()
    };
    if let Some(code) = value("--exit") {
        return ExitCode::from(code.parse::<u8>().unwrap());
    }
    assert!(
        std::env::var_os("BATON_TOKEN").is_none(),
        "the fleet's secret is not for engines"
    );
    let config: serde_json::Value =
        serde_json::from_str(&value("--kv-transfer-config").unwrap()).unwrap();
    let address =
        |host: String, port: String| -> SocketAddr { format!("{host}:{port}").parse().unwrap() };
    let variable = |name: &str| std::env::var(name).unwrap();
    let side_channel = address(
        variable("VLLM_NIXL_SIDE_CHANNEL_HOST"),
        variable("VLLM_NIXL_SIDE_CHANNEL_PORT"),
    );
    let http = address("127.0.0.1".to_owned(), value("--port").unwrap());
    let config = Config {
        engine_id: config["engine_id"].as_str().map(str::to_owned),
        ..Config::new(Some("kv_both"))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        if arguments.iter().any(|argument| argument == "--never") {
            std::future::pending::<()>().await;
        }
        EmulatedVllm::at(config, http, side_channel)
            .unwrap()
            .start()
            .await;
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

fn a_sidecar_ends_as_its_engine_ends() {
    let own = std::env::current_exe().unwrap();
    for code in ["0", "1", "7"] {
        let listen = ports::free().to_string();
        let flags = [
            "--token",
            TOKEN,
            "--listen",
            &listen,
            "--",
            own.to_str().unwrap(),
            "fake-engine",
            "--exit",
            code,
        ];
        let output = ended(daemon("sidecar", &flags).spawn().unwrap());
        assert_eq!(output.status.code(), Some(code.parse().unwrap()));
    }
}

const BOTH: &str = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"old"}"#;

fn a_launched_engine_serves_and_ends_with_its_sidecar() {
    let own = std::env::current_exe().unwrap();
    for name in ["TERM", "KILL"] {
        let (listen, http, side) = (ports::free(), ports::free(), ports::free());
        let (listen_text, side_text, port) = (
            listen.to_string(),
            side.to_string(),
            http.port().to_string(),
        );
        let flags = [
            "--listen",
            &listen_text,
            "--side-channel",
            &side_text,
            "--",
            own.to_str().unwrap(),
            "fake-engine",
            "--port",
            &port,
            "--kv-transfer-config",
            BOTH,
        ];
        let sidecar = daemon("sidecar", &flags)
            .env("BATON_TOKEN", TOKEN)
            .spawn()
            .unwrap();
        // The sidecar refuses an engine whose engine_id is not the fresh one it was given.
        until("the engine to be attached", || {
            listens(listen) && metric(listen, "baton_sidecar_engine_up 1")
        });
        assert!(metric(listen, "baton_sidecar_engine_incarnations_total 1"));
        if name == "TERM" {
            signal(&sidecar, name);
            assert_eq!(ended(sidecar).status.code(), Some(0));
            until("the engine to be gone", || !listens(http));
        } else {
            // The engine dies, killed by somebody else: its sidecar says so.
            let found = Command::new("pgrep")
                .args(["-f", &format!("fake-engine --port {port} ")])
                .output()
                .unwrap();
            let engine = String::from_utf8_lossy(&found.stdout);
            let engine = engine
                .lines()
                .find(|pid| *pid != sidecar.id().to_string())
                .unwrap_or_default();
            assert!(!engine.is_empty(), "the engine's process");
            assert!(
                Command::new("kill")
                    .args(["-s", "KILL", engine])
                    .status()
                    .unwrap()
                    .success()
            );
            assert_eq!(ended(sidecar).status.code(), Some(128 + 9));
        }
    }
}

fn an_engine_that_never_starts_is_given_up() {
    let own = std::env::current_exe().unwrap();
    let (listen, http, side) = (
        ports::free().to_string(),
        ports::free(),
        ports::free().to_string(),
    );
    let port = http.port().to_string();
    let flags = [
        "--token",
        TOKEN,
        "--boot-s",
        "1",
        "--listen",
        &listen,
        "--side-channel",
        &side,
        "--",
        own.to_str().unwrap(),
        "fake-engine",
        "--never",
        "--port",
        &port,
        "--kv-transfer-config",
        BOTH,
    ];
    let output = ended(daemon("sidecar", &flags).spawn().unwrap());
    last_words(&output, 1, "did not start within 1 s");
}
