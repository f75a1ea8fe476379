//! An engine's command line: what its flags say, and what is changed about it before the engine is launched.

use std::path::PathBuf;

use baton_daemon::Exit;

/// An engine's program and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineCommand(Vec<String>);

impl EngineCommand {
    /// Of a program and its arguments.
    pub fn new(command: Vec<String>) -> Self {
        Self(command)
    }

    /// Program and arguments.
    pub fn into_inner(self) -> Vec<String> {
        self.0
    }

    /// All arguments in the spelling with dashes, a value behind `=` untouched. Engines take `--some-flag` and
    /// `--some_flag`.
    pub fn canonical(&self) -> impl DoubleEndedIterator<Item = String> + '_ {
        self.0.iter().map(|argument| canonical(argument))
    }

    /// Value of a flag; the last one goes, as with the engines themselves.
    pub fn flag(&self, name: &str) -> Option<String> {
        let (alone, joined) = (format!("--{name}"), format!("--{name}="));
        let mut found = None;
        for (at, argument) in self.canonical().enumerate() {
            if argument == alone {
                found = self.0.get(at + 1).cloned();
            } else if let Some(value) = argument.strip_prefix(&joined) {
                found = Some(value.to_owned());
            }
        }
        found
    }

    /// Whether a flag without a value is there and not taken back behind that.
    pub fn is_set(&self, name: &str) -> bool {
        let (on, off) = (format!("--{name}"), format!("--no-{name}"));
        let mut arguments = self.canonical().rev();
        arguments.find(|argument| *argument == on || *argument == off) == Some(on)
    }

    /// Gives a flag one value.
    pub fn set(&mut self, name: &str, value: &str) {
        let (alone, joined) = (format!("--{name}"), format!("--{name}="));
        let mut kept = Vec::with_capacity(self.0.len() + 2);
        let mut arguments = std::mem::take(&mut self.0).into_iter();
        while let Some(argument) = arguments.next() {
            let plain = canonical(&argument);
            if plain == alone {
                arguments.next();
            } else if !plain.starts_with(&joined) {
                kept.push(argument);
            }
        }
        kept.extend([alone, value.to_owned()]);
        self.0 = kept;
    }

    /// Base URL of its HTTP server, as it is reached from here. An engine that listens everywhere listens here.
    pub fn base_url(&self, default_port: &str) -> String {
        let host = self.flag("host").unwrap_or_default();
        let host = match host.as_str() {
            "" | "0.0.0.0" | "::" => "127.0.0.1",
            other => other,
        };
        let port = self.flag("port");
        format!("http://{host}:{}", port.as_deref().unwrap_or(default_port))
    }

    /// The Python environment that the program belongs to.
    pub fn environment(&self) -> Option<PathBuf> {
        let program = self.0.first()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = if program.contains('/') {
            Some(PathBuf::from(program))
        } else {
            let candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
            candidates.into_iter().find(|file| file.is_file())
        };
        Some(found?.parent()?.parent()?.to_owned())
    }
}

/// How a sidecar comes to its engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way<'a> {
    /// It runs already, at this base URL.
    Beside(&'a str),
    /// It is launched by this command.
    Launching(EngineCommand),
}

impl<'a> Way<'a> {
    /// By flags, of which one is given and not both.
    pub fn of(engine: Option<&'a String>, command: &[String]) -> Result<Self, Exit> {
        match (engine, command.is_empty()) {
            (Some(url), true) => Ok(Self::Beside(url)),
            (None, false) => Ok(Self::Launching(EngineCommand::new(command.to_vec()))),
            (Some(_), false) => Err(Exit::usage(
                "give either --engine or an engine command after --, not both",
            )),
            (None, true) => Err(Exit::usage(
                "say which engine: --engine URL for a running one, or its command after -- to launch it",
            )),
        }
    }
}

/// An engine's base URL without a slash at its end; refused if it is none, with one at this port as an example.
pub fn base_url(url: &str, example_port: &str) -> Result<String, Exit> {
    match baton_daemon::http::base_url(url) {
        Some(_) => Ok(url.trim_end_matches('/').to_owned()),
        None => Err(Exit::usage(format!(
            "{url:?} must look like http://127.0.0.1:{example_port}"
        ))),
    }
}

fn canonical(argument: &str) -> String {
    let (name, value) = argument
        .split_once('=')
        .map_or((argument, None), |(name, value)| (name, Some(value)));
    let name = if name.starts_with("--") {
        name.replace('_', "-")
    } else {
        name.to_owned()
    };
    value.map_or(name.clone(), |value| format!("{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> EngineCommand {
        EngineCommand::new(text.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn flags_are_read_as_engines_read_them() {
        let command =
            command("serve --some_flag 1 --some-flag=2 --on --off --no-off --json {\"a_b\":1}");
        assert_eq!(command.flag("some-flag").as_deref(), Some("2"));
        assert_eq!(command.flag("json").as_deref(), Some("{\"a_b\":1}"));
        assert_eq!(command.flag("absent"), None);
        assert!(command.is_set("on") && !command.is_set("off") && !command.is_set("absent"));
    }

    #[test]
    fn an_engine_that_listens_everywhere_listens_here() {
        for (line, url) in [
            ("serve", "http://127.0.0.1:8000"),
            ("serve --host 0.0.0.0 --port=9", "http://127.0.0.1:9"),
            ("serve --host 10.0.0.1", "http://10.0.0.1:8000"),
        ] {
            assert_eq!(command(line).base_url("8000"), url);
        }
    }

    #[test]
    fn one_way_to_an_engine_is_taken() {
        let (url, command) = ("http://a:1".to_owned(), ["serve".to_owned()]);
        assert_eq!(Way::of(Some(&url), &[]).unwrap(), Way::Beside("http://a:1"));
        assert!(matches!(
            Way::of(None, &command).unwrap(),
            Way::Launching(_)
        ));
        let refused = |engine, command| Way::of(engine, command).unwrap_err().to_string();
        assert!(refused(Some(&url), &command[..]).contains("not both"));
        assert!(refused(None, &[]).contains("say which engine"));
        assert_eq!(base_url("http://a:1/", "8000").unwrap(), "http://a:1");
        let why = base_url("nonsense", "8000").unwrap_err().to_string();
        assert!(
            why.contains("must look like http://127.0.0.1:8000"),
            "{why}"
        );
    }

    #[test]
    fn a_flag_is_set_once() {
        let mut command = command("serve --port 1 --some_flag=3 --port=2 model");
        command.set("port", "7");
        assert_eq!(
            command.into_inner(),
            ["serve", "--some_flag=3", "model", "--port", "7"]
        );
    }
}
