//! Handoffs that fail, in every way that the vLLM wire page lists.

use super::{Case, Identity, Part, Step, TicketChange, ask, prefill};
use crate::conformance::target::{Role, Setup};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![reused(), stale(), lease_expired()];
    cases.extend(other_prompts());
    cases.extend(changed_tickets());
    cases.extend(dead_prefills());
    cases.extend(deadly());
    cases.extend(recomputed());
    cases
}

fn case(name: &str, steps: impl Into<Vec<Step>>) -> Case {
    Case::new(name, Setup::First, steps)
}

/// A ticket can be used again and again as long as nobody overwrites the blocks.
fn reused() -> Case {
    let steps = [
        prefill("err_first_use_ok"),
        ask("err_first_use_ok"),
        ask("err_params_reused_after_consume_local_hit"),
        Step::Forget,
        ask("err_params_reused_after_consume_no_local_hit"),
    ];
    case("err_params_reused", steps)
}

/// Nobody notices that the blocks hold something else by now.
fn stale() -> Case {
    let (first, stale) = (
        "stale_1_first_use",
        "err_stale_params_after_blocks_overwritten",
    );
    let steps = [
        prefill(first),
        ask(first),
        Step::Overwrite(Role::Prefill),
        Step::Forget,
        ask(stale),
        Step::Differ(first, stale),
    ];
    case(stale, steps)
}

fn lease_expired() -> Case {
    let name = "err_lease_expired";
    let steps = [prefill(name), Step::Expires, ask(name)];
    Case::new(name, Setup::ShortLease, steps)
}

fn other_prompts() -> [Case; 2] {
    let wrong = "err_wrong_prompt_same_len";
    let shorter = "err_prompt_shorter_than_prefilled";
    let other = Step::Prefill(wrong.to_owned(), Part::Other);
    let longer = Step::Prefill(shorter.to_owned(), Part::Longer(150));
    [
        case(wrong, [other, ask(wrong), Step::Wrong(wrong)]),
        case(shorter, [longer, ask(shorter)]),
    ]
}

/// What decode survives.
fn changed_tickets() -> [Case; 7] {
    let changes = [
        ("err_block_ids_out_of_range", TicketChange::OutOfRange),
        (
            "err_unknown_remote_request_id",
            TicketChange::UnknownRequest,
        ),
        ("err_wrong_engine_id", TicketChange::WrongEngine),
        (
            "err_side_channel_port_dead_new_engine",
            TicketChange::DeadPort,
        ),
        ("err_stream_side_channel_dead", TicketChange::DeadPort),
        ("err_chat_stream_side_channel_dead", TicketChange::DeadPort),
        ("pd_without_tp_size", TicketChange::Without("tp_size")),
    ];
    changes.map(|(name, change)| case(name, [prefill(name), Step::Change(change), ask(name)]))
}

/// The prefill engine dies, and comes back under the same id, or another.
fn dead_prefills() -> [Case; 2] {
    let (before, after) = ("pd_before_kill", "err_prefill_killed_between_steps");
    let killed = [
        prefill(before),
        ask(before),
        prefill(after),
        Step::Kill(Role::Prefill),
        ask(after),
        ask("err_prefill_killed_second_try"),
    ];
    let mut again = vec![
        prefill(before),
        ask(before),
        Step::Kill(Role::Prefill),
        Step::StartAgain(Role::Prefill, Identity::Same),
    ];
    for number in 0..3 {
        let name = format!("err_after_prefill_restart_same_engine_id_try{number}");
        again.extend([prefill(&name), ask(&name)]);
    }
    let new = "pd_new_engine_id_after_prefill_restart";
    again.extend([
        Step::Kill(Role::Prefill),
        Step::StartAgain(Role::Prefill, Identity::New),
        prefill(new),
        ask(new),
    ]);
    let own = [Role::Prefill, Role::Decode];
    [
        case("err_prefill_killed", killed).with_own(&own),
        case("err_prefill_restarted", again).with_own(&own),
    ]
}

/// What ends a decode engine. It answers 500 first, and then never again.
fn deadly() -> [Case; 4] {
    let bare = "err_do_remote_prefill_without_blocks";
    let longer = "err_prompt_longer_than_prefilled";
    let fewer = "err_too_few_block_ids";
    let hangs = "err_first_use_ok";
    let cases = [
        case(bare, [Step::Dies(bare)]),
        case(
            longer,
            [
                Step::Prefill(longer.to_owned(), Part::First(150)),
                Step::Dies(longer),
            ],
        ),
        case(
            fewer,
            [
                prefill(fewer),
                Step::Change(TicketChange::TooFewBlocks),
                Step::Dies(fewer),
            ],
        ),
        case(
            "err_remote_request_id_missing",
            [
                prefill(hangs),
                Step::Change(TicketChange::Without("remote_request_id")),
                Step::NeverAnswered(hangs),
            ],
        ),
    ];
    cases.map(|case| case.with_own(&[Role::Decode]))
}

/// With the other load failure policy, decode computes what it cannot load.
fn recomputed() -> [Case; 2] {
    let port = "recompute_side_channel_port_dead_new_engine";
    let (first, second) = (
        "recompute_prefill_killed_between_steps",
        "recompute_prefill_killed_second_try",
    );
    let dead = [
        prefill(port),
        Step::Change(TicketChange::DeadPort),
        ask(port),
    ];
    // Decode knows the engine before it dies: it need not find out that nobody answers.
    let killed = [
        prefill(first),
        ask(first),
        Step::Forget,
        prefill(first),
        Step::Kill(Role::Prefill),
        ask(first),
        ask(second),
    ];
    [
        Case::new(port, Setup::Recompute, dead),
        Case::new("recompute_prefill_killed", Setup::Recompute, killed).with_own(&[Role::Prefill]),
    ]
}
