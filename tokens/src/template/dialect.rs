//! What of Jinja2 is reproduced exactly: a template that uses anything else is not rendered.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

use super::walk::{Node, nodes};

/// Filters that were compared with Jinja2.
const FILTERS: [&str; 27] = [
    "tojson",
    "trim",
    "string",
    "join",
    "length",
    "count",
    "default",
    "d",
    "first",
    "last",
    "list",
    "items",
    "selectattr",
    "rejectattr",
    "select",
    "reject",
    "map",
    "replace",
    "upper",
    "lower",
    "capitalize",
    "int",
    "reverse",
    "unique",
    "safe",
    "abs",
    "dictsort",
];
/// Tests that were compared with Jinja2.
const TESTS: [&str; 30] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "integer",
    "float",
    "boolean",
    "true",
    "false",
    "odd",
    "even",
    "divisibleby",
    "in",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "<",
    "gt",
    ">",
    "le",
    "ge",
    "sameas",
    "lessthan",
];
/// Methods that were compared with Python's.
const METHODS: [&str; 19] = [
    "items",
    "keys",
    "values",
    "get",
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "startswith",
    "endswith",
    "replace",
    "upper",
    "lower",
    "capitalize",
    "join",
    "count",
    "find",
    "rfind",
    "cycle",
];
/// Names that Python's mappings answer to themselves, before any member of that name.
const PYTHON_NAMES: [&str; 11] = [
    "items",
    "keys",
    "values",
    "get",
    "pop",
    "popitem",
    "copy",
    "update",
    "clear",
    "setdefault",
    "fromkeys",
];
/// Functions of Jinja2 that have no counterpart here.
const NO_FUNCTIONS: [&str; 5] = ["lipsum", "cycler", "joiner", "self", "debug"];

/// Says what in a template is not reproduced, if anything.
pub(super) fn check(root: &Stmt<'_>) -> Result<(), String> {
    let found = nodes(root);
    for &node in &found {
        match node {
            Node::Statement(statement) => check_statement(statement)?,
            Node::Expression(expression) => check_expression(expression, &found)?,
        }
    }
    Ok(())
}

/// Whether the clock is read, or might be.
pub(super) fn reads_clock(root: &Stmt<'_>) -> bool {
    nodes(root).into_iter().any(|node| match node {
        // Asking whether the function is there reads no clock, but whoever asks uses it.
        Node::Expression(Expr::Var(name)) => name.id == "strftime_now",
        _ => false,
    })
}

fn check_statement(statement: &Stmt<'_>) -> Result<(), String> {
    let unknown = |what: &str| Err(format!("it uses {what}, which is not reproduced here"));
    match statement {
        Stmt::Block(_)
        | Stmt::Extends(_)
        | Stmt::Include(_)
        | Stmt::Import(_)
        | Stmt::FromImport(_) => unknown("other templates"),
        Stmt::AutoEscape(_) => unknown("autoescape"),
        // Jinja2 is set up without the extension.
        Stmt::Do(_) => unknown("do"),
        Stmt::ForLoop(each) if each.recursive => unknown("a recursive loop"),
        _ => Ok(()),
    }
}

fn check_expression(expression: &Expr<'_>, all: &[Node<'_, '_>]) -> Result<(), String> {
    let known = |known: bool, what: &str, name: &str| {
        let unknown = || format!("it uses the {what} {name:?}, which is not reproduced here");
        known.then_some(()).ok_or_else(unknown)
    };
    match expression {
        Expr::Filter(filter) => {
            known(FILTERS.contains(&filter.name), "filter", filter.name)?;
            named_inside(filter.name, &filter.args)
        }
        Expr::Test(test) => known(TESTS.contains(&test.name), "test", test.name),
        Expr::Var(name) => known(!NO_FUNCTIONS.contains(&name.id), "name", name.id),
        Expr::Call(call) => match &call.expr {
            Expr::GetAttr(method) => known(METHODS.contains(&method.name), "method", method.name),
            Expr::Var(_) => Ok(()),
            _ => known(false, "call of", "an expression"),
        },
        Expr::GetAttr(get) => known(
            !is_python_name(get.name) || is_called(expression, all),
            "attribute",
            get.name,
        ),
        _ => Ok(()),
    }
}

/// Filters that are given the name of a filter or test are given it from the same lists, and where it can be seen.
fn named_inside(filter: &str, arguments: &[CallArg<'_>]) -> Result<(), String> {
    let (known, place): (&[&str], usize) = match filter {
        "map" => (&FILTERS, 0),
        "select" | "reject" => (&TESTS, 0),
        "selectattr" | "rejectattr" => (&TESTS, 1),
        _ => return Ok(()),
    };
    let named = match arguments.get(place) {
        None | Some(CallArg::Kwarg(..)) => true,
        Some(CallArg::Pos(Expr::Const(name))) => name
            .value
            .as_str()
            .is_some_and(|name| known.contains(&name)),
        Some(_) => false,
    };
    named
        .then_some(())
        .ok_or_else(|| format!("it hands {filter} what is not reproduced here"))
}

pub(super) fn is_python_name(name: &str) -> bool {
    PYTHON_NAMES.contains(&name) || name.starts_with("__")
}

/// Whether this attribute is the method of a call.
fn is_called(attribute: &Expr<'_>, all: &[Node<'_, '_>]) -> bool {
    all.iter().any(|node| matches!(node, Node::Expression(Expr::Call(call)) if std::ptr::eq(&raw const call.expr, attribute)))
}
