//! Whether a template takes a message's content as a string or as a list of parts: the engine looks for a loop over the
//! parts, and so it is found here (vLLM 0.32.0, `--chat-template-content-format auto`).

use std::collections::BTreeSet;

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};

use super::walk::{Node, below, nodes};
use crate::files::ContentFormat;

/// The format that the engine finds for a template.
pub(super) fn format(root: &Stmt<'_>) -> ContentFormat {
    // The engine gives up, and takes strings, at a target that is no plain name.
    if loops_over_content(root).unwrap_or(false) {
        ContentFormat::OpenAi
    } else {
        ContentFormat::String
    }
}

/// None: the engine's own search fails.
fn loops_over_content(root: &Stmt<'_>) -> Option<bool> {
    let all = nodes(root);
    let lists = names_of_messages(&all)?;
    let messages = names_of_a_message(&all, &lists)?;
    let (in_macros, through_macros) = macros(&all, &messages);
    for each in loops(&all) {
        let over_member = messages
            .iter()
            .any(|name| accesses(&each.iter, name, Some("content")));
        let over_name = match &each.iter {
            Expr::Var(name) => {
                let inside = in_macros.iter().any(|&other| std::ptr::eq(other, each));
                let parameter = through_macros
                    .iter()
                    .any(|&(other, parameter)| std::ptr::eq(other, each) && parameter == name.id);
                parameter || (!inside && name.id == "content")
            }
            _ => false,
        };
        if over_member || over_name {
            target(each)?;
            return Some(true);
        }
    }
    Some(false)
}

/// `messages` and all that is set from it or from a part of it.
fn names_of_messages<'n>(all: &[Node<'n, 'n>]) -> Option<BTreeSet<&'n str>> {
    let mut names = BTreeSet::from(["messages"]);
    let mut open = vec!["messages"];
    while let Some(name) = open.pop() {
        for node in all {
            let Node::Statement(Stmt::Set(set)) = node else {
                continue;
            };
            if accesses(&set.expr, name, None) {
                let Expr::Var(target) = &set.target else {
                    return None;
                };
                if names.insert(target.id) {
                    open.push(target.id);
                }
            }
        }
    }
    Some(names)
}

/// Names of a single message: targets of loops over messages.
fn names_of_a_message<'n>(all: &[Node<'n, 'n>], lists: &BTreeSet<&str>) -> Option<Vec<&'n str>> {
    let over_messages =
        |each: &&ForLoop<'n>| lists.iter().any(|name| accesses(&each.iter, name, None));
    loops(all).filter(over_messages).map(target).collect()
}

fn target<'n>(each: &ForLoop<'n>) -> Option<&'n str> {
    match &each.target {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

fn loops<'n, 'a>(all: &'a [Node<'n, 'n>]) -> impl Iterator<Item = &'n ForLoop<'n>> + use<'n, 'a> {
    all.iter().filter_map(|node| match node {
        Node::Statement(Stmt::ForLoop(each)) => Some(&**each),
        _ => None,
    })
}

type Through<'n> = Vec<(&'n ForLoop<'n>, &'n str)>;

/// Loops inside macros, and those of them over a parameter that is given a message's content.
fn macros<'n>(all: &[Node<'n, 'n>], messages: &[&str]) -> (Vec<&'n ForLoop<'n>>, Through<'n>) {
    let (mut inside, mut through) = (Vec::new(), Vec::new());
    for node in all {
        let Node::Statement(statement @ Stmt::Macro(each)) = node else {
            continue;
        };
        let parameters = content_parameters(each, all, messages);
        for each in loops(&below(Node::Statement(statement))) {
            inside.push(each);
            through.extend(parameters.iter().map(|&parameter| (each, parameter)));
        }
    }
    (inside, through)
}

/// Which parameters of a macro are given a message's content somewhere.
fn content_parameters<'n>(
    each: &Macro<'n>,
    all: &[Node<'n, 'n>],
    messages: &[&str],
) -> BTreeSet<&'n str> {
    let name = |arg: &Expr<'n>| {
        if let Expr::Var(name) = arg {
            Some(name.id)
        } else {
            None
        }
    };
    let parameters: Vec<&'n str> = each.args.iter().filter_map(name).collect();
    let calls = all.iter().filter_map(|node| match node {
        Node::Expression(Expr::Call(call)) => Some(call),
        _ => None,
    });
    let own = calls.filter(|call| matches!(&call.expr, Expr::Var(name) if name.id == each.name));
    own.flat_map(|call| given_content(&call.args, &parameters, messages))
        .collect()
}

/// Which parameters a call gives a message's content.
fn given_content<'n>(
    arguments: &[CallArg<'_>],
    parameters: &[&'n str],
    messages: &[&str],
) -> Vec<&'n str> {
    let is_content = |value: &Expr<'_>| {
        messages
            .iter()
            .any(|name| accesses(value, name, Some("content")))
    };
    let (mut found, mut places) = (Vec::new(), parameters.iter());
    for argument in arguments {
        match argument {
            CallArg::Pos(value) => found.extend(places.next().filter(|_| is_content(value))),
            CallArg::Kwarg(name, value) => {
                found.extend(
                    parameters
                        .iter()
                        .filter(|&other| other == name && is_content(value)),
                );
            }
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {}
        }
    }
    found
}

/// Whether an expression is that variable, or that member of it, itself or through filters, tests and slices.
fn accesses(expression: &Expr<'_>, variable: &str, member: Option<&str>) -> bool {
    let is_variable =
        |expression: &Expr<'_>| matches!(expression, Expr::Var(name) if name.id == variable);
    match expression {
        Expr::Filter(filter) => filter
            .expr
            .as_ref()
            .is_some_and(|input| accesses(input, variable, member)),
        Expr::Test(test) => accesses(&test.expr, variable, member),
        Expr::Slice(slice) => accesses(&slice.expr, variable, member),
        Expr::GetAttr(get) => member == Some(get.name) && is_variable(&get.expr),
        Expr::GetItem(get) => {
            matches!(&get.subscript_expr, Expr::Const(name) if name.value.as_str() == member && member.is_some())
                && is_variable(&get.expr)
        }
        _ => member.is_none() && is_variable(expression),
    }
}
