#!/usr/bin/env python3
"""Steady load through the router while the fleet changes: no request may fail.

Runs until its standard input is closed, or for a bounded time.
"""

import argparse
import itertools
import os
import re
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from common import Report, openai_client
from workload import Answer, make_workloads, send

DIFFERENT_REQUESTS = 2_000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="base URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--at-most-s", type=float, default=300, help="ends by itself after this many seconds")
    parser.add_argument("--expect-decode", action="append", default=[], help="worker that must get some; repeatable")
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


def run_until(ended: threading.Event, args: argparse.Namespace, report: Report) -> list[Answer]:
    client = openai_client(args.router)
    workloads = itertools.cycle(make_workloads(DIFFERENT_REQUESTS, args.seed))
    lock = threading.Lock()
    answers: list[Answer] = []

    def sender() -> None:
        while not ended.is_set():
            with lock:
                workload = next(workloads)
            answer = send(client, args.model, workload)
            with lock:
                answers.append(answer)
            report.progress(0)

    with ThreadPoolExecutor(args.concurrency) as pool:
        for sending in [pool.submit(sender) for _ in range(args.concurrency)]:
            sending.result()
    return answers


def decode_worker(answer: Answer) -> str | None:
    found = re.search(r"\b(?:decode|worker)=(\S+)", answer.plan or "")
    return found and found[1]


def main() -> None:
    args = parse_arguments()
    report = Report()
    ended = threading.Event()

    def wait_for_end_of_input() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        ended.set()

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    bound = threading.Timer(args.at_most_s, ended.set)
    bound.daemon = True
    bound.start()
    start = time.monotonic()
    answers = run_until(ended, args, report)
    seconds = time.monotonic() - start

    failed = [answer.error for answer in answers if answer.error]
    report.check(
        "no request failed while workers came and went",
        bool(answers) and not failed,
        f"{len(failed)} of {len(answers)} failed: {'; '.join(failed[:3])}" if failed else f"{len(answers)} requests",
    )
    decoded = Counter(decode_worker(answer) for answer in answers if not answer.error)
    for worker in args.expect_decode:
        report.check(f"{worker} took part", decoded[worker] > 0, f"{decoded[worker]} requests")
    report.figure("requests a second under load", round(len(answers) / seconds, 1), "1/s")
    report.exit()


if __name__ == "__main__":
    main()
