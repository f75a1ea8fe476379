#!/usr/bin/env python3
"""Greedy answers through the router, forced to be split, against those of one aggregated engine.

The aggregated engine answers everything twice, at the same concurrency. A prompt whose two answers
differ depends on batching and proves nothing; nearly none may be so. Every other prompt must have the
same text, token ids, finish reason and usage through the router, and the decode engines' own counters
must say that exactly those prompts' tokens came by KV transfer.
"""

import argparse

from common import Report
from engines import ENGINES
from workload import Answer, Workload, make_workloads, run

STABLE_SHARE = 0.98


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="base URL")
    parser.add_argument("--aggregated", required=True, help="base URL of the reference engine")
    parser.add_argument("--decode", required=True, action="append", help="base URL of a decode engine; repeatable")
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine-kind", choices=ENGINES, default="vllm")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=2, help="of prompts and lengths")
    return parser.parse_args()


def no_failures(report: Report, name: str, answers: list[Answer]) -> bool:
    errors = [f"request {i}: {a.error}" for i, a in enumerate(answers) if a.error]
    return report.check(name, not errors, "; ".join(errors[:3]) or f"{len(answers)} requests")


def differences(workloads: list[Workload], ours: list[Answer], reference: list[Answer]) -> list[str]:
    found = []
    for workload, our, theirs in zip(workloads, ours, reference):
        if our.comparable() != theirs.comparable():
            kind = f"{workload.api}{' stream' if workload.stream else ''}"
            found.append(f"request {workload.number} ({kind}): {our.comparable()} instead of {theirs.comparable()}")
    return found


def main() -> None:
    args = parse_arguments()
    report = Report()
    engine = ENGINES[args.engine_kind]
    workloads = make_workloads(args.requests, args.seed)

    references = []
    for turn in ("first", "second"):
        references.append(run(args.aggregated, args.model, workloads, args.concurrency, report, engine))
        if not no_failures(report, f"the aggregated engine answers ({turn} run)", references[-1]):
            report.exit()
        # The second run must do the work of the first again, not find it in the cache.
        engine.reset_prefix_cache(args.aggregated)
    first, second = references
    stable = [i for i, (a, b) in enumerate(zip(first, second)) if a.comparable() == b.comparable()]
    report.check(
        f"at least {STABLE_SHARE:.0%} of prompts are stable over two aggregated runs",
        len(stable) >= STABLE_SHARE * len(workloads),
        f"{len(stable)} of {len(workloads)}",
    )

    before = sum(map(engine.transferred_tokens, args.decode))
    answers = run(args.router, args.model, workloads, args.concurrency, report, engine)
    after = sum(map(engine.transferred_tokens, args.decode))

    no_failures(report, "the router answers", answers)
    not_split = [f"request {i}: {a.plan}" for i, a in enumerate(answers) if not (a.plan or "").startswith("split ")]
    report.check("every request was split", not not_split, "; ".join(not_split[:3]))
    different = differences(
        [workloads[i] for i in stable], [answers[i] for i in stable], [first[i] for i in stable]
    )
    report.check(
        "split answers equal the aggregated engine's: text, token ids, finish reason, usage",
        not different,
        "; ".join(different[:2]) or f"{len(stable)} stable prompts",
    )
    prompt_tokens = sum(a.usage[0] for a in answers if a.usage)
    report.check(
        "every prompt token reached decode by KV transfer",
        after - before == prompt_tokens,
        f"{after - before:.0f} of {prompt_tokens} tokens",
    )
    report.exit()


if __name__ == "__main__":
    main()
