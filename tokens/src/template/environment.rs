//! The template engine, set up as the engine's library sets up Jinja2.

use indexmap::IndexMap;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use super::{clock, filters, methods};
use crate::python;

/// Variables of a rendering.
pub(super) struct Context(IndexMap<Value, Value>);

impl FromIterator<(String, Value)> for Context {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(variables: I) -> Context {
        Context(
            variables
                .into_iter()
                .map(|(name, value)| (Value::from(name), value))
                .collect(),
        )
    }
}

impl From<Context> for Value {
    fn from(context: Context) -> Value {
        Value::from_object(context.0)
    }
}

/// An environment without templates.
pub(super) fn new(fuel: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
    {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(fuel));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python::str(value)?)?));
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", raise);
    environment.add_function("strftime_now", clock::strftime_now);
    filters::add(&mut environment);
    environment
}

fn raise(message: &str) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("refuses this chat: {message}"),
    ))
}
