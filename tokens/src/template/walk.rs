//! A template's syntax tree, and every node of it.

use minijinja::Error;
use minijinja::machinery::ast::{CallArg, Expr, Stmt};
use minijinja::machinery::parse as parse_source;
use minijinja::syntax::SyntaxConfig;

/// A node of a template.
#[derive(Clone, Copy)]
pub(super) enum Node<'n, 't> {
    Statement(&'n Stmt<'t>),
    Expression(&'n Expr<'t>),
}

/// The tree of a template's source.
pub(super) fn parse(source: &str) -> Result<Stmt<'_>, Error> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    parse_source(source, "chat", syntax)
}

/// All nodes, each before the nodes inside it.
pub(super) fn nodes<'n, 't>(root: &'n Stmt<'t>) -> Vec<Node<'n, 't>> {
    below(Node::Statement(root))
}

/// A node and all nodes inside it.
pub(super) fn below<'n, 't>(node: Node<'n, 't>) -> Vec<Node<'n, 't>> {
    let mut found = Vec::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        found.push(node);
        let from = open.len();
        match node {
            Node::Statement(statement) => children_of_statement(statement, &mut open),
            Node::Expression(expression) => children_of_expression(expression, &mut open),
        }
        // The last pushed is the first taken.
        open[from..].reverse();
    }
    found
}

type Open<'n, 't> = Vec<Node<'n, 't>>;

fn add<'n, 't>(open: &mut Open<'n, 't>, expressions: &[&'n Expr<'t>], bodies: &[&'n [Stmt<'t>]]) {
    open.extend(
        expressions
            .iter()
            .map(|&expression| Node::Expression(expression)),
    );
    open.extend(
        bodies
            .iter()
            .flat_map(|body| body.iter())
            .map(Node::Statement),
    );
}

fn children_of_statement<'n, 't>(statement: &'n Stmt<'t>, open: &mut Open<'n, 't>) {
    match statement {
        Stmt::Template(template) => add(open, &[], &[&template.children]),
        Stmt::EmitExpr(emit) => add(open, &[&emit.expr], &[]),
        Stmt::ForLoop(each) => {
            add(open, &[&each.target, &each.iter], &[]);
            add(
                open,
                &each.filter_expr.iter().collect::<Vec<_>>(),
                &[&each.body, &each.else_body],
            );
        }
        Stmt::IfCond(cond) => add(open, &[&cond.expr], &[&cond.true_body, &cond.false_body]),
        Stmt::WithBlock(with) => {
            with.assignments
                .iter()
                .for_each(|(name, value)| add(open, &[name, value], &[]));
            add(open, &[], &[&with.body]);
        }
        Stmt::Set(set) => add(open, &[&set.target, &set.expr], &[]),
        Stmt::SetBlock(set) => {
            add(open, &[&set.target], &[]);
            add(open, &set.filter.iter().collect::<Vec<_>>(), &[&set.body]);
        }
        Stmt::FilterBlock(block) => add(open, &[&block.filter], &[&block.body]),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        _ => children_of_definition(statement, open),
    }
}

/// Macros and their calls, and what belongs to templates that use others.
fn children_of_definition<'n, 't>(statement: &'n Stmt<'t>, open: &mut Open<'n, 't>) {
    match statement {
        Stmt::Macro(each) => {
            add(
                open,
                &each.args.iter().chain(&each.defaults).collect::<Vec<_>>(),
                &[&each.body],
            );
        }
        Stmt::CallBlock(block) => {
            add(open, &[&block.call.expr], &[&block.macro_decl.body]);
            arguments(&block.call.args, open);
        }
        Stmt::Do(call) => {
            add(open, &[&call.call.expr], &[]);
            arguments(&call.call.args, open);
        }
        Stmt::AutoEscape(escape) => add(open, &[&escape.enabled], &[&escape.body]),
        Stmt::Block(block) => add(open, &[], &[&block.body]),
        Stmt::Import(import) => add(open, &[&import.expr, &import.name], &[]),
        Stmt::FromImport(import) => add(open, &[&import.expr], &[]),
        Stmt::Extends(extends) => add(open, &[&extends.name], &[]),
        Stmt::Include(include) => add(open, &[&include.name], &[]),
        _ => {}
    }
}

fn children_of_expression<'n, 't>(expression: &'n Expr<'t>, open: &mut Open<'n, 't>) {
    match expression {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(slice) => {
            add(open, &[&slice.expr], &[]);
            let bounds = [&slice.start, &slice.stop, &slice.step];
            bounds
                .into_iter()
                .flatten()
                .for_each(|bound| add(open, &[bound], &[]));
        }
        Expr::UnaryOp(op) => add(open, &[&op.expr], &[]),
        Expr::BinOp(op) => add(open, &[&op.left, &op.right], &[]),
        Expr::Compare(compare) => {
            add(open, &[&compare.expr], &[]);
            compare
                .ops
                .iter()
                .for_each(|op| add(open, &[&op.expr], &[]));
        }
        Expr::IfExpr(cond) => {
            add(open, &[&cond.test_expr, &cond.true_expr], &[]);
            cond.false_expr
                .iter()
                .for_each(|otherwise| add(open, &[otherwise], &[]));
        }
        Expr::GetAttr(get) => add(open, &[&get.expr], &[]),
        Expr::GetItem(get) => add(open, &[&get.expr, &get.subscript_expr], &[]),
        Expr::List(list) => add(open, &list.items.iter().collect::<Vec<_>>(), &[]),
        Expr::Tuple(tuple) => add(open, &tuple.items.iter().collect::<Vec<_>>(), &[]),
        Expr::Map(map) => add(
            open,
            &map.keys.iter().chain(&map.values).collect::<Vec<_>>(),
            &[],
        ),
        Expr::Filter(_) | Expr::Test(_) | Expr::Call(_) => children_of_call(expression, open),
    }
}

/// What is called, and with what.
fn children_of_call<'n, 't>(expression: &'n Expr<'t>, open: &mut Open<'n, 't>) {
    match expression {
        Expr::Filter(filter) => {
            filter
                .expr
                .iter()
                .for_each(|input| add(open, &[input], &[]));
            arguments(&filter.args, open);
        }
        Expr::Test(test) => {
            add(open, &[&test.expr], &[]);
            arguments(&test.args, open);
        }
        Expr::Call(call) => {
            add(open, &[&call.expr], &[]);
            arguments(&call.args, open);
        }
        _ => {}
    }
}

fn arguments<'n, 't>(arguments: &'n [CallArg<'t>], open: &mut Vec<Node<'n, 't>>) {
    open.extend(arguments.iter().map(|argument| match argument {
        CallArg::Pos(expression)
        | CallArg::Kwarg(_, expression)
        | CallArg::PosSplat(expression)
        | CallArg::KwargSplat(expression) => Node::Expression(expression),
    }));
}
