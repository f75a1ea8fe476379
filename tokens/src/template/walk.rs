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

fn children_of_statement<'n, 't>(statement: &'n Stmt<'t>, open: &mut Vec<Node<'n, 't>>) {
    let mut all = |expressions: &[&'n Expr<'t>], bodies: &[&'n Vec<Stmt<'t>>]| {
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
    };
    match statement {
        Stmt::Template(template) => all(&[], &[&template.children]),
        Stmt::EmitExpr(emit) => all(&[&emit.expr], &[]),
        Stmt::ForLoop(each) => {
            all(&[&each.target, &each.iter], &[]);
            all(
                &each.filter_expr.iter().collect::<Vec<_>>(),
                &[&each.body, &each.else_body],
            );
        }
        Stmt::IfCond(cond) => all(&[&cond.expr], &[&cond.true_body, &cond.false_body]),
        Stmt::WithBlock(with) => {
            with.assignments
                .iter()
                .for_each(|(name, value)| all(&[name, value], &[]));
            all(&[], &[&with.body]);
        }
        Stmt::Set(set) => all(&[&set.target, &set.expr], &[]),
        Stmt::SetBlock(set) => {
            all(&[&set.target], &[]);
            all(&set.filter.iter().collect::<Vec<_>>(), &[&set.body]);
        }
        Stmt::AutoEscape(escape) => all(&[&escape.enabled], &[&escape.body]),
        Stmt::FilterBlock(block) => all(&[&block.filter], &[&block.body]),
        Stmt::Block(block) => all(&[], &[&block.body]),
        Stmt::Import(import) => all(&[&import.expr, &import.name], &[]),
        Stmt::FromImport(import) => all(&[&import.expr], &[]),
        Stmt::Extends(extends) => all(&[&extends.name], &[]),
        Stmt::Include(include) => all(&[&include.name], &[]),
        Stmt::Macro(each) => {
            all(
                &each.args.iter().chain(&each.defaults).collect::<Vec<_>>(),
                &[&each.body],
            );
        }
        Stmt::CallBlock(block) => {
            all(&[&block.call.expr], &[&block.macro_decl.body]);
            arguments(&block.call.args, open);
        }
        Stmt::Do(call) => {
            all(&[&call.call.expr], &[]);
            arguments(&call.call.args, open);
        }
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
    }
}

fn children_of_expression<'n, 't>(expression: &'n Expr<'t>, open: &mut Vec<Node<'n, 't>>) {
    let mut all = |expressions: &[&'n Expr<'t>]| {
        open.extend(
            expressions
                .iter()
                .map(|&expression| Node::Expression(expression)),
        )
    };
    match expression {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(slice) => {
            all(&[&slice.expr]);
            [&slice.start, &slice.stop, &slice.step]
                .into_iter()
                .flatten()
                .for_each(|bound| all(&[bound]));
        }
        Expr::UnaryOp(op) => all(&[&op.expr]),
        Expr::BinOp(op) => all(&[&op.left, &op.right]),
        Expr::Compare(compare) => {
            all(&[&compare.expr]);
            compare.ops.iter().for_each(|op| all(&[&op.expr]));
        }
        Expr::IfExpr(cond) => {
            all(&[&cond.test_expr, &cond.true_expr]);
            cond.false_expr
                .iter()
                .for_each(|otherwise| all(&[otherwise]));
        }
        Expr::Filter(filter) => {
            filter.expr.iter().for_each(|input| all(&[input]));
            arguments(&filter.args, open);
        }
        Expr::Test(test) => {
            all(&[&test.expr]);
            arguments(&test.args, open);
        }
        Expr::GetAttr(get) => all(&[&get.expr]),
        Expr::GetItem(get) => all(&[&get.expr, &get.subscript_expr]),
        Expr::Call(call) => {
            all(&[&call.expr]);
            arguments(&call.args, open);
        }
        Expr::List(list) => all(&list.items.iter().collect::<Vec<_>>()),
        Expr::Tuple(tuple) => all(&tuple.items.iter().collect::<Vec<_>>()),
        Expr::Map(map) => all(&map.keys.iter().chain(&map.values).collect::<Vec<_>>()),
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
