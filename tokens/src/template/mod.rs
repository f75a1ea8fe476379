//! Chat templates: written for Jinja2, run by minijinja, and only where both are known to agree.
//!
//! A template is taken apart when it is loaded. What it uses must be on the list of what was compared with Jinja2
//! (`dialect`); anything else makes the whole template unknown, with the reason. What can only be seen while it runs (a
//! list that is printed, a clock that is read) fails that one rendering.

mod clock;
mod content;
mod dialect;
mod environment;
mod filters;
mod methods;
mod rewrite;
mod walk;

use minijinja::{Environment, Error, ErrorKind, Value};

pub use clock::Now;
pub(crate) use methods::{strip, strip_end};

use crate::files::ContentFormat;
use crate::unknown::Unknown;

/// The name under which the caller's clock is given to a rendering; no template can spell it.
const NOW: &str = "\u{1}now";
/// The only template of an environment.
const NAME: &str = "chat";

/// A chat template, ready to be rendered.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    source: String,
    pub(crate) content_format: ContentFormat,
    pub(crate) reads_clock: bool,
}

impl Template {
    /// Compiles a template, or says in one sentence why it cannot be rendered here.
    pub(crate) fn compile(source: &str, fuel: u64) -> Result<Template, String> {
        // Jinja2 knows one kind of line break.
        let one_kind = source.replace("\r\n", "\n").replace('\r', "\n");
        let readable = rewrite::generation_blocks(&one_kind);
        let parsed = walk::parse(&readable).map_err(|error| describe(&error))?;
        dialect::check(&parsed)?;
        let (content_format, reads_clock) =
            (content::format(&parsed), dialect::reads_clock(&parsed));
        let exact = rewrite::exactly(&readable, &parsed);
        if !walk::parse(&exact).is_ok_and(|root| rewrite::is_exact(&root, &parsed)) {
            return Err("it is written in a way that cannot be reproduced here".to_owned());
        }
        let mut environment = environment::new(fuel);
        environment
            .add_template_owned(NAME, exact)
            .map_err(|error| describe(&error))?;
        Ok(Template {
            environment,
            source: source.to_owned(),
            content_format,
            reads_clock,
        })
    }

    /// Whether the template's text has this in it.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// The text of a chat of at most so many bytes.
    pub(crate) fn render(
        &self,
        mut variables: Vec<(String, Value)>,
        now: Option<Now>,
        most: usize,
    ) -> Result<String, Unknown> {
        if let Some(now) = now {
            variables.push((NOW.to_owned(), Value::from_object(now)));
        }
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| Unknown::Template(describe(&error)))?;
        let mut text = Bounded {
            text: Vec::new(),
            most,
        };
        let context: Value = variables
            .into_iter()
            .collect::<environment::Context>()
            .into();
        match template.render_captured_to(context, &mut text) {
            Ok(_) => {
                String::from_utf8(text.text).map_err(|error| Unknown::Template(error.to_string()))
            }
            Err(error) if clock::is_missing(&error) => Err(Unknown::TimeDependent),
            Err(error) if error.kind() == ErrorKind::WriteFailure => Err(Unknown::TooLong {
                bytes: most + 1,
                most,
            }),
            Err(error) => Err(Unknown::Template(describe(&error))),
        }
    }
}

/// The first line of what the template engine says.
fn describe(error: &Error) -> String {
    let cause =
        std::iter::successors(std::error::Error::source(error), |cause| cause.source()).last();
    let text = cause.map_or_else(|| error.to_string(), ToString::to_string);
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(300)
        .collect()
}

/// A text that refuses to grow beyond its bound.
struct Bounded {
    text: Vec<u8>,
    most: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            return Err(std::io::Error::other("the rendered chat is too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
