//! What minijinja reads differently, put into words that both read alike.

use minijinja::machinery::ast::{BinOpKind, Expr, Stmt};

use super::dialect::is_python_name;
use super::walk::{Node, nodes};

/// A filter of ours: the value as Python's `str` writes it. No template spells it by accident.
pub(super) const AS_TEXT: &str = "baton_python_str";
/// Another one: a member that must be there, since Python would find a method instead.
pub(super) const MEMBER: &str = "baton_python_member";
/// And one more: what a loop is over, which must not be nothing.
pub(super) const ITERATED: &str = "baton_python_iter";

/// `{% generation %}` marks what an assistant said and prints it unchanged; minijinja has no such block. A `with` without
/// variables is the same: a scope of its own.
pub(super) fn generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Whether a rewritten template is the same but for our filters, and these are where they have to be.
pub(super) fn is_exact(root: &Stmt<'_>, original: &Stmt<'_>) -> bool {
    wanted(root).is_empty() && shape(root) == shape(original)
}

/// A template's nodes by kind and name, in order, without our filters.
fn shape(root: &Stmt<'_>) -> Vec<String> {
    let described = nodes(root).into_iter().filter_map(|node| match node {
        Node::Statement(statement) => Some(format!("{:?}", std::mem::discriminant(statement))),
        Node::Expression(Expr::Filter(filter))
            if matches!(filter.name, AS_TEXT | MEMBER | ITERATED) =>
        {
            None
        }
        Node::Expression(expression) => {
            let name = match expression {
                Expr::Var(var) => var.id.to_owned(),
                Expr::Const(constant) => constant.value.to_string(),
                Expr::GetAttr(get) => get.name.to_owned(),
                Expr::Filter(filter) => filter.name.to_owned(),
                Expr::Test(test) => test.name.to_owned(),
                _ => String::new(),
            };
            Some(format!("{:?} {name}", std::mem::discriminant(expression)))
        }
    });
    described.collect()
}

/// Expressions that have to go through one of our filters and do not yet.
fn wanted<'n, 't>(root: &'n Stmt<'t>) -> Vec<(&'n Expr<'t>, &'static str)> {
    let (mut wanted, mut done) = (Vec::new(), Vec::new());
    for node in nodes(root) {
        let expression = match node {
            Node::Expression(expression) => expression,
            Node::Statement(Stmt::ForLoop(each)) => {
                let passed = matches!(&each.iter, Expr::Filter(filter) if filter.name == ITERATED);
                wanted.extend((!passed).then_some((&each.iter, ITERATED)));
                continue;
            }
            Node::Statement(_) => continue,
        };
        match expression {
            Expr::BinOp(op) if matches!(op.op, BinOpKind::Concat) => {
                let parts = [&op.left, &op.right]
                    .into_iter()
                    .filter(|operand| !is_text(operand));
                wanted.extend(parts.map(|operand| (operand, AS_TEXT)));
            }
            Expr::Filter(filter) if filter.name == MEMBER => {
                done.extend(filter.expr.as_ref().map(std::ptr::from_ref))
            }
            Expr::GetItem(get) if !done.contains(&std::ptr::from_ref(expression)) => {
                let named = matches!(&get.subscript_expr, Expr::Const(name) if name.value.as_str().is_some_and(is_python_name));
                wanted.extend(named.then_some((expression, MEMBER)));
            }
            _ => {}
        }
    }
    wanted
}

fn is_text(operand: &Expr<'_>) -> bool {
    match operand {
        // A chain's left part is a text already.
        Expr::BinOp(op) => matches!(op.op, BinOpKind::Concat),
        Expr::Const(constant) => constant.value.as_str().is_some(),
        Expr::Filter(filter) => filter.name == AS_TEXT,
        _ => false,
    }
}

/// `a ~ b` joins what `str` makes of both in Jinja2, where minijinja writes some values otherwise; and `a['items']` is
/// Python's method where there is no such member; and a loop over `none` fails. All are passed through filters of ours.
pub(super) fn exactly(source: &str, root: &Stmt<'_>) -> String {
    let mut inserts: Vec<(usize, String)> = Vec::new();
    for (expression, filter) in wanted(root) {
        inserts.push((start(expression), "((".to_owned()));
        inserts.push((
            expression.span().end_offset as usize,
            format!(")|{filter})"),
        ));
    }
    inserts.sort_by_key(|(at, _)| *at);
    let mut out = String::with_capacity(source.len() + inserts.len() * 8);
    let mut from = 0;
    for (at, text) in inserts {
        out.push_str(source.get(from..at).unwrap_or_default());
        out.push_str(&text);
        from = at.max(from);
    }
    out.push_str(source.get(from..).unwrap_or_default());
    out
}

/// Where an expression begins. The parser's own mark of a member, a call or a filter may lie behind what they are applied
/// to. Whether a parenthesis goes before or behind another one is the same.
fn start(expression: &Expr<'_>) -> usize {
    match expression {
        Expr::GetAttr(get) => start(&get.expr),
        Expr::GetItem(get) => start(&get.expr),
        Expr::Slice(slice) => start(&slice.expr),
        Expr::Call(call) => start(&call.expr),
        Expr::Test(test) => start(&test.expr),
        Expr::BinOp(op) => start(&op.left),
        Expr::Compare(compare) => start(&compare.expr),
        Expr::IfExpr(cond) => start(&cond.true_expr),
        Expr::Filter(filter) => filter
            .expr
            .as_ref()
            .map_or(filter.span().start_offset as usize, start),
        _ => expression.span().start_offset as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::walk::parse;

    #[test]
    fn rewritten_templates_are_the_same_but_for_the_filters() {
        let cases = [
            ("{{ a ~ 'x' }}", "{{ ((a)|baton_python_str) ~ 'x' }}"),
            (
                "{{ a.b[0] ~ f(c) ~ d }}",
                "{{ ((a.b[0])|baton_python_str) ~ ((f(c))|baton_python_str) ~ ((d)|baton_python_str) }}",
            ),
            (
                "{{ (a if b else c) ~ '' }}",
                "{{ (((a if b else c)|baton_python_str)) ~ '' }}",
            ),
            (
                "{{ a['items']['x'] | f }}",
                "{{ ((a['items'])|baton_python_member)['x'] | f }}",
            ),
            (
                "{{ a['items'].get('x') }}",
                "{{ ((a['items'])|baton_python_member).get('x') }}",
            ),
            (
                "{% for x in a[1:] %}{% endfor %}",
                "{% for x in ((a[1:])|baton_python_iter) %}{% endfor %}",
            ),
        ];
        for (source, expected) in cases {
            let parsed = parse(source).unwrap();
            let rewritten = exactly(source, &parsed);
            assert_eq!(rewritten, expected);
            assert!(is_exact(&parse(&rewritten).unwrap(), &parsed), "{source}");
            assert!(!is_exact(&parsed, &parsed), "{source} is exact as it is");
        }
    }

    #[test]
    fn generation_blocks_keep_their_control_of_blanks() {
        let source =
            "a {%- generation -%} b {% endgeneration %}{{ generation }}{% set generation = 1 %}";
        let expected = "a {%- with -%} b {% endwith %}{{ generation }}{% set generation = 1 %}";
        assert_eq!(generation_blocks(source), expected);
    }
}
