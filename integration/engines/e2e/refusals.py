#!/usr/bin/env python3
"""What the router must refuse, sent as a client would, and proof that the engines live on.

Recorded bodies and those that are known to kill an engine, as they are and in disguise (a duplicate key, an
escaped key), to both OpenAI routes and to one that is only passed through. Each must be answered by Baton
itself: status 400, the `baton-error` header, an OpenAI-shaped body. Then other malformed requests.
"""

import argparse
import http.client
import json
import random
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common import Report, error_text, get_text, openai_client
from workload import make_workloads, send

ERROR_HEADER = "baton-error"
ROUTES = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]
TIMEOUT_S = 30
# Larger than any limit an OpenAI front has reason to allow.
HUGE_BODY_BYTES = 256 << 20


@dataclass
class Refusal:
    name: str
    route: str
    body: bytes
    status: int = 400
    method: str = "POST"


def post_body(route: str, model: str, more: dict) -> dict:
    """A body that would be fine on that route without `more`."""
    if route.endswith("chat/completions"):
        prompt = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    elif route.endswith("completions"):
        prompt = {"prompt": "hello", "max_tokens": 4}
    else:
        prompt = {"input": "hello"}
    return {"model": model, **prompt, **more}


def ticket(**changes) -> dict:
    """Transfer metadata as an engine makes it, but for a request that was never prefilled."""
    metadata = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3, 4, 5]],
        "remote_engine_id": "no-such-engine",
        "remote_request_id": "cmpl-no-such-request-0-00000000",
        "remote_host": "127.0.0.1",
        "remote_port": 5601,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 150,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
    merged = metadata | changes
    return {key: value for key, value in merged.items() if value != "absent"}


# Each killed a decode engine, or hung it, or could: the engine has no guard of its own.
TRANSFER_KEYS = {
    "only do_remote_prefill": {"kv_transfer_params": {"do_remote_prefill": True}},
    "longer prompt than prefilled": {"kv_transfer_params": ticket(remote_num_tokens=1, remote_block_ids=[[1]])},
    "truncated block ids": {"kv_transfer_params": ticket(remote_block_ids=[[]])},
    "no remote_request_id": {"kv_transfer_params": ticket(remote_request_id="absent")},
    "do_remote_decode": {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    "not an object": {"kv_transfer_params": "x"},
    "null": {"kv_transfer_params": None},
    "encoder cache": {"ec_transfer_params": {"x": 1}},
    "bootstrap room": {"bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 0},
    "disaggregated_params": {"disaggregated_params": {"request_type": "generation_only"}},
    # The engine copies these into the arguments that its connector reads; an empty one passes the API
    # server's own look and ends the engine core with an AttributeError (0.32.0, seen).
    "inside vllm_xargs": {"vllm_xargs": {"kv_transfer_params": []}},
    "inside vllm_xargs, empty string": {"vllm_xargs": {"kv_transfer_params": ""}},
}


def disguises(body: dict) -> dict[str, bytes]:
    """The same request, spelled so that a careless reader of keys would miss it."""
    text = json.dumps(body)
    key = '"kv_transfer_params"'
    harmless = f"{key}: null, "
    return {
        "": text.encode(),
        "escaped key": text.replace(key, '"kv_transfer\\u005fparams"').encode(),
        "key escaped all over": text.replace(key, '"' + "".join(f"\\u{ord(c):04X}" for c in key[1:-1]) + '"').encode(),
        "duplicate key, harmless one first": text.replace("{", "{" + harmless, 1).encode(),
        "duplicate key, harmless one last": (text[:-1] + f", {harmless[:-2]}}}").encode(),
        "duplicate and escaped": (text[:-1] + ', "kv_transfer\\u005fparams": null}').encode(),
        "duplicate model": text.replace("{", '{"model": "tiny", ', 1).encode(),
    }


def transfer_refusals(model: str) -> list[Refusal]:
    refusals = []
    for route in ROUTES:
        for name, keys in TRANSFER_KEYS.items():
            body = post_body(route, model, keys)
            refusals.append(Refusal(name, route, json.dumps(body).encode()))
        body = post_body(route, model, {"kv_transfer_params": {"do_remote_prefill": True}})
        for name, spelled in disguises(body).items():
            refusals.append(Refusal(name or "plain", route, spelled))
        escaped = post_body(route, model, {"vllm_xargs": {"kv_transfer_params": []}})
        refusals.append(Refusal("escaped key inside vllm_xargs", route, disguises(escaped)["escaped key"]))
    return refusals


def recorded_refusals(folder: Path, model: str) -> list[Refusal]:
    """Each recorded body on its own route, and its transfer keys on the others."""
    refusals = []
    for file in sorted(folder.glob("*.json")):
        recording = json.loads(file.read_text())
        body = recording["body"] | {"model": model}
        for route in ROUTES:
            if route != recording["path"]:
                body = post_body(route, model, {"kv_transfer_params": recording["body"]["kv_transfer_params"]})
            refusals.append(Refusal(f"recorded {file.stem}", route, json.dumps(body).encode()))
    return refusals


def malformed_refusals(model: str) -> list[Refusal]:
    chat, completions = "/v1/chat/completions", "/v1/completions"
    good = json.dumps(post_body(completions, model, {})).encode()
    malformed = {
        "empty body": b"",
        "cut off": good[:-5],
        "an array": b"[]",
        "trailing bytes": good + b"{}",
        "not UTF-8": good.replace(b"hello", b"\xff\xfe"),
        "NaN": good.replace(b'"hello"', b"NaN"),
        "nested 100,000 deep": b'{"model": ' + b"[" * 100_000,
    }
    refusals = [Refusal(name, route, body) for name, body in malformed.items() for route in (chat, completions)]
    for route in ROUTES:
        refusals += [
            Refusal("unknown model", route, json.dumps(post_body(route, "no-such-model", {})).encode(), 404),
            Refusal("wrong method", route, b"", 405, "GET"),
            Refusal("wrong method", route, good, 405, "PUT"),
        ]
    administration = ["/reset_prefix_cache", "/v1/load_lora_adapter", "/baton/v1/prefill", "/v1/completions/../x"]
    return refusals + [Refusal("no such route", route, good, 404) for route in administration]


def exchange(router: str, refusal: Refusal) -> tuple[int, str | None, bytes]:
    """(status, `baton-error` header, body). Plain HTTP: the client library would not send most of these."""
    connection = http.client.HTTPConnection(urlsplit(router).netloc, timeout=TIMEOUT_S)
    try:
        connection.request(refusal.method, refusal.route, refusal.body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.getheader(ERROR_HEADER), answer.read()
    finally:
        connection.close()


def fault_of(refusal: Refusal, status: int, header: str | None, body: bytes) -> str | None:
    """What is wrong with a refusal; None if it is as it must be."""
    if status != refusal.status:
        return f"status {status} instead of {refusal.status}: {body[:200]!r}"
    if not header:
        return f"no {ERROR_HEADER} header"
    try:
        error = json.loads(body)["error"]
        if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
            return f"an empty error: {body[:200]!r}"
        if not {"code", "param"} <= error.keys():
            return f"not OpenAI-shaped: {body[:200]!r}"
    except (ValueError, KeyError, TypeError):
        return f"not OpenAI-shaped: {body[:200]!r}"
    return None


def check_refusals(report: Report, router: str, title: str, refusals: list[Refusal]) -> None:
    faults = []
    for refusal in refusals:
        try:
            fault = fault_of(refusal, *exchange(router, refusal))
        except (OSError, http.client.HTTPException) as error:
            fault = error_text(error)
        if fault:
            faults.append(f"{refusal.name} on {refusal.method} {refusal.route}: {fault}")
    report.check(title, not faults, "; ".join(faults[:5]) or f"{len(refusals)} requests")


def check_huge_body(report: Report, router: str) -> None:
    """Refused by its declared length, or while it comes; never read to its end."""
    connection = http.client.HTTPConnection(urlsplit(router).netloc, timeout=TIMEOUT_S)
    sent = 0
    try:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-type", "application/json")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        piece = b" " * (1 << 20)
        while sent < HUGE_BODY_BYTES:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the router has answered and stopped reading
    try:
        answer = connection.getresponse()
        status, header = answer.status, answer.getheader(ERROR_HEADER)
        report.check("huge body", status == 413 and bool(header), f"{status} after {sent >> 20} MiB")
    except (OSError, http.client.HTTPException) as error:
        # A reset may overtake the answer on the way; then the declared length must be what is refused.
        check_declared_length(report, router, error_text(error))
    finally:
        connection.close()


def check_declared_length(report: Report, router: str, before: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(router).netloc, timeout=TIMEOUT_S)
    try:
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(HUGE_BODY_BYTES))
        connection.endheaders()
        answer = connection.getresponse()
        report.check("huge body", answer.status == 413, f"{answer.status} by its length (streamed: {before})")
    except (OSError, http.client.HTTPException) as error:
        report.check("huge body", False, error_text(error))
    finally:
        connection.close()


def check_allowed(report: Report, router: str, model: str) -> None:
    """Transfer keys that are only text, or deeper than the engine looks, are the client's business."""
    chat = openai_client(router).chat.completions
    try:
        chat.create(
            model=model,
            max_tokens=4,
            messages=[{"role": "user", "content": '{"kv_transfer_params": {"do_remote_prefill": true}}'}],
            metadata={"kv_transfer_params": "x"},
        )
        report.check("transfer keys as text, or nested, are allowed", True)
    except Exception as error:  # any error is the finding
        report.check("transfer keys as text, or nested, are allowed", False, error_text(error))


def check_alive(report: Report, engine: str, model: str, seed: int) -> None:
    try:
        get_text(f"{engine}/health")
        answer = send(openai_client(engine), model, make_workloads(2, seed)[0])
        report.check(f"engine {engine} is alive and answers", answer.error is None, answer.error or "")
    except OSError as error:
        report.check(f"engine {engine} is alive and answers", False, error_text(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", required=True, help="base URL")
    parser.add_argument("--engine", required=True, action="append", help="base URL of an engine behind it; repeatable")
    parser.add_argument("--model", required=True)
    parser.add_argument("--recordings", required=True, type=Path, help="folder of recorded bodies")
    args = parser.parse_args()
    report = Report()
    recorded = recorded_refusals(args.recordings, args.model)
    report.check("there are recorded bodies", bool(recorded), f"in {args.recordings}")
    check_refusals(report, args.router, "recorded bodies are refused", recorded)
    check_refusals(report, args.router, "transfer keys are refused", transfer_refusals(args.model))
    check_refusals(report, args.router, "malformed requests are refused", malformed_refusals(args.model))
    check_huge_body(report, args.router)
    check_allowed(report, args.router, args.model)
    for engine in args.engine:
        check_alive(report, engine, args.model, seed=random.randrange(1 << 30))
    report.exit()


if __name__ == "__main__":
    main()
