//! Configuration in layers: flags over `BATON_*` variables over a TOML file over defaults.
//!
//! A daemon declares its flags once, with clap. The file has the same names: each key is the long name of a flag and
//! becomes that flag's default, so the layers need no merging code and an unknown key is simply a flag that is not there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use baton_proto::token::FleetToken;
use clap::{Arg, Args, Command, Parser};

use crate::run::Exit;

/// Flags that all daemons share.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// The fleet's secret, the same for all routers and sidecars; better given as BATON_TOKEN than on a command line.
    #[arg(
        long,
        value_name = "SECRET",
        env = "BATON_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// TOML file with any of these flags as keys (`listen = "127.0.0.1:8000"`); flags and BATON_* variables win over it.
    #[arg(long, value_name = "FILE", env = "BATON_CONFIG")]
    pub config: Option<PathBuf>,
    /// What to log: a level (error, warn, info, debug, trace) or a filter such as `info,baton_router=debug`.
    #[arg(long, value_name = "FILTER", env = "BATON_LOG", default_value = "info")]
    pub log: String,
    /// How log lines look.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "BATON_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

impl Common {
    /// The fleet's secret, or why there is none.
    pub fn fleet_token(&self) -> Result<FleetToken, Exit> {
        FleetToken::given(self.token.as_deref()).map_err(|bad| Exit::usage(bad.to_string()))
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; colours only on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why there are no arguments to go on with.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// Help or version was asked for.
    Show(String),
    /// The configuration cannot work, in one sentence.
    Refuse(String),
}

/// Parses a command line with its environment and configuration file.
pub fn parse<A: Parser>(command_line: impl IntoIterator<Item = OsString>) -> Result<A, Stop> {
    let command_line: Vec<OsString> = command_line.into_iter().collect();
    let mut command = A::command();
    if let Some(file) = config_file(&command_line) {
        command = with_defaults_from(command, &file)?;
    }
    let matches = command
        .try_get_matches_from(command_line)
        .map_err(|error| stop(&error))?;
    A::from_arg_matches(&matches).map_err(|error| stop(&error))
}

/// The file must be known before the flags are parsed, since it provides their defaults.
fn config_file(command_line: &[OsString]) -> Option<PathBuf> {
    let mut own_flags = command_line.iter().skip(1).take_while(|arg| *arg != "--");
    while let Some(arg) = own_flags.next() {
        let Some(text) = arg.to_str() else { continue };
        if text == "--config" {
            return own_flags.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(path.into());
        }
    }
    std::env::var_os("BATON_CONFIG").map(PathBuf::from)
}

fn with_defaults_from(mut command: Command, file: &Path) -> Result<Command, Stop> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Stop::Refuse(format!(
            "the configuration file {shown} cannot be read: {error}"
        ))
    })?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| {
        Stop::Refuse(format!(
            "the configuration file {shown} is not TOML: {}",
            one_line(error.message())
        ))
    })?;
    for (key, value) in table {
        let known = command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(key.as_str()) && key != "config");
        let Some(id) = known.map(|arg| arg.get_id().clone()) else {
            let all: Vec<&str> = command
                .get_arguments()
                .filter_map(Arg::get_long)
                .filter(|long| *long != "config")
                .collect();
            return Err(Stop::Refuse(format!(
                "{shown} has an unknown key {key:?}; known keys are {}",
                all.join(", ")
            )));
        };
        let values = defaults(&value).ok_or_else(|| {
            Stop::Refuse(format!(
                "{shown}: {key} must be a text, a number, a boolean or a list of texts"
            ))
        })?;
        command = command.mut_arg(id, |arg| arg.default_values(values));
    }
    Ok(command)
}

fn defaults(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(flag) => Some(vec![flag.to_string()]),
        toml::Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect(),
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

fn stop(error: &clap::Error) -> Stop {
    if error.use_stderr() {
        let text = error.to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        Stop::Refuse(format!(
            "{} (--help explains)",
            one_line(first.trim_start_matches("error: "))
        ))
    } else {
        Stop::Show(error.render().ansi_if_terminal())
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

trait ForTerminal {
    fn ansi_if_terminal(&self) -> String;
}

impl ForTerminal for clap::builder::StyledStr {
    fn ansi_if_terminal(&self) -> String {
        use std::io::IsTerminal;
        if std::io::stdout().is_terminal() {
            self.ansi().to_string()
        } else {
            self.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[arg(long, default_value = "127.0.0.1:1")]
        listen: String,
        #[arg(long, value_delimiter = ',')]
        router: Vec<String>,
        #[arg(long)]
        limit: Option<u32>,
        #[command(flatten)]
        common: Common,
    }

    fn parse_with(file: &str, flags: &[&str]) -> Result<Flags, Stop> {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(file.as_bytes()).unwrap();
        let path = config.path().to_str().unwrap();
        let line = ["baton", "--config", path]
            .into_iter()
            .chain(flags.iter().copied());
        parse(line.map(OsString::from))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file =
            "listen = \"127.0.0.1:2\"\nlimit = 7\nrouter = [\"a\", \"b\"]\nlog-format = \"json\"";
        let flags = parse_with(file, &["--limit", "9"]).unwrap();
        assert_eq!(
            (flags.listen.as_str(), flags.limit),
            ("127.0.0.1:2", Some(9))
        );
        assert_eq!(flags.router, ["a", "b"]);
        assert_eq!(flags.common.log_format, LogFormat::Json);
        assert_eq!(parse_with("", &[]).unwrap().listen, "127.0.0.1:1");
    }

    #[test]
    fn what_cannot_work_is_one_sentence() {
        for (file, flags, part) in [
            ("lissten = 1", &[][..], "unknown key \"lissten\""),
            ("config = \"x\"", &[], "unknown key \"config\""),
            ("= 1", &[], "is not TOML"),
            ("listen = { a = 1 }", &[], "listen must be"),
            ("limit = \"many\"", &[], "invalid value 'many'"),
            ("", &["--limt", "1"], "--limt"),
        ] {
            let Err(Stop::Refuse(sentence)) = parse_with(file, flags) else {
                panic!("{file:?} {flags:?} was accepted")
            };
            assert!(sentence.contains(part), "{sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
        let missing =
            parse::<Flags>(["baton", "--config=/nonexistent"].map(OsString::from)).unwrap_err();
        assert!(matches!(missing, Stop::Refuse(sentence) if sentence.contains("cannot be read")));
    }

    #[test]
    fn help_is_no_error_and_flags_of_a_child_are_not_ours() {
        assert!(
            matches!(parse_with("", &["--help"]), Err(Stop::Show(text)) if text.contains("--listen"))
        );
        assert_eq!(
            config_file(&["x", "--", "--config", "y"].map(OsString::from)),
            None
        );
    }
}
