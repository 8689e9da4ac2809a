"""What the ward costs and saves on vLLM: ratios of one run, on SmolLM2 in float32.

Servers stand beside each other and are asked in turn, with the same threads bound to the same
cores; the fastest answer of each round counts where times are compared, because whatever else
runs on the machine only adds. TTFT is the time of a request for one token.

Usage: make bench-vllm, or benchmarks/bench_vllm.py [hits|throughput|spans ...] as it does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from figures import Figure, publish

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from engines.minting import Minter, open_minter  # noqa: E402
from engines.vllm_server import BLOCK_TOKENS, PYTHON, VllmServer, complete, ward_arguments  # noqa: E402
from kvward.lab.fetch import cache_folder, fetch_smollm2  # noqa: E402
from kvward.terms import SharingLevel  # noqa: E402
from servers import write_policy  # noqa: E402

LONG, SHORT, PREFIX = 2_000, 512, 1_000
ROUNDS = 5
CLIENTS, REQUESTS = 16, 96
TENANTS = [f"t{number}" for number in range(16)]
Fields = dict[str, Any]


def draw(seed: object, num_tokens: int) -> list[int]:
    return Random(str(seed)).sample(range(1000, 40000), num_tokens)


def ask(server: VllmServer, token_ids: Sequence[int], fields: Fields) -> tuple[float, int]:
    """Return the time of one token in milliseconds, and how many tokens were reused."""
    answer = complete(server.url, list(token_ids), max_tokens=1, body=fields)
    return answer.seconds * 1e3, answer.cached_tokens


def forget(server: VllmServer) -> None:
    request = urllib.request.Request(f"{server.url}/reset_prefix_cache", method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


class Bench:
    """Servers that are asked in turn, and a minter for each policy."""

    def __init__(self, folder: Path, model: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._model = model
        self._stack = stack

    def start(self, name: str, arguments: Sequence[str], **variables: str) -> VllmServer:
        print(f"Starting {name} …", file=sys.stderr)
        return VllmServer(
            model=self._model,
            folder=self._folder / name,
            arguments=arguments,
            variables={"VLLM_SERVER_DEV_MODE": "1", **variables},
        )

    def ward(self, name: str) -> tuple[Path, Minter]:
        _, policy = write_policy(
            self._folder / name, level=SharingLevel.CONVERSATION, keep=True, tenants=tuple(TENANTS)
        )
        (policy.parent / "prefix.json").write_text(json.dumps(draw("public", PREFIX)))
        with policy.open("a") as file:
            file.write('\n[[public_prefixes]]\nname = "p"\ntoken_ids_file = "prefix.json"\n')
        return policy, self._stack.enter_context(open_minter(policy))


def warded(policy: Path, **settings: Any) -> list[str]:
    return ward_arguments(policy=str(policy), lookup_ms=500.0, load_s=10.0, **settings)


def restore_ms(
    server: VllmServer, fields: Callable[[str], Fields], num_tokens: int, seed: str
) -> Callable[[int], float]:
    """Store a prompt; return what measures how fast it comes back from the store."""
    token_ids, mine = draw((seed, num_tokens), num_tokens), fields(f"{seed}-{num_tokens}")
    ask(server, token_ids, mine)
    time.sleep(2.5)  # until it is stored, and the scope's keys are looked for again
    whole = (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def measure(_: int) -> float:
        forget(server)
        taken, cached = ask(server, token_ids, mine)
        assert cached == whole, (seed, cached, whole)
        return taken

    return measure


def recompute_ms(
    server: VllmServer, fields: Callable[[str], Fields], num_tokens: int
) -> Callable[[int], float]:
    def measure(number: int) -> float:
        name = f"fresh-{num_tokens}-{number}"
        taken, cached = ask(server, draw(name, num_tokens), fields(name))
        assert cached == 0
        return taken

    return measure


def in_turn(*measures: Callable[[int], float], rounds: int = ROUNDS) -> list[float]:
    """Return the fastest of each, taken in turn."""
    taken = [[measure(number) for measure in measures] for number in range(rounds)]
    return [min(column) for column in zip(*taken, strict=True)]


def hits(
    sealed: VllmServer, plain: VllmServer, example: VllmServer, minters: Sequence[Minter]
) -> list[Figure]:
    """Restore against recompute, sealed against plain, ours against vLLM's example."""
    ours, bare = (lambda name, m=m: m.conversation("t0", name) for m in minters)
    figures = []
    for num_tokens, bar in ((SHORT, None), (LONG, 0.25)):
        back, fresh = in_turn(
            restore_ms(sealed, ours, num_tokens, "hit"), recompute_ms(sealed, ours, num_tokens)
        )
        figures.append(
            Figure(name=f"TTFT, {num_tokens} tokens: from the store / computed", value=back,
                   unit="ms", baseline=fresh, bar=bar, at_most=True)
        )  # fmt: skip
    with_seal, without = in_turn(
        restore_ms(sealed, ours, LONG, "seal"), restore_ms(plain, bare, LONG, "seal"), rounds=11
    )
    figures.append(
        Figure(name=f"TTFT, {LONG} tokens from the store: sealed / unsealed", value=with_seal,
               unit="ms", baseline=without, bar=1.05, at_most=True)
    )  # fmt: skip
    with_seal, vllms = in_turn(
        restore_ms(sealed, ours, LONG, "example"),
        restore_ms(example, lambda _: {}, LONG, "example"),
    )
    figures.append(
        Figure(name=f"TTFT, {LONG} tokens from disk: ours / ExampleConnector", value=with_seal,
               unit="ms", baseline=vllms)
    )  # fmt: skip
    return figures


def throughput(server: VllmServer, fields: Callable[[int], Fields], seed: str) -> float:
    """Return requests per second, 16 clients, half of the requests with a prefix seen before."""

    def one(number: int) -> None:
        conversation = number // 2
        prompt = draw((seed, conversation), 400)
        more = draw((seed, "more", number), 40) if number % 2 else []
        complete(server.url, prompt + more, max_tokens=8, body=fields(conversation))

    # The two requests of a conversation are half the list apart, so that the first has ended.
    order = [*range(0, REQUESTS, 2), *range(1, REQUESTS, 2)]
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, order))
    return REQUESTS / (time.perf_counter() - began)


def throughputs(sealed: VllmServer, stock: VllmServer, minter: Minter) -> list[Figure]:
    on, off = [], []
    for number in range(3):
        on.append(
            throughput(
                sealed, lambda c, n=number: minter.conversation("t0", f"load-{n}-{c}"), f"w{number}"
            )
        )
        off.append(
            throughput(stock, lambda c, n=number: {"cache_salt": f"salt-{n}-{c}"}, f"w{number}")
        )
    return [
        Figure(name=f"{CLIENTS} clients, half of it reused: ward / stock with salts",
               value=max(on), unit="requests/s", baseline=max(off))
    ]  # fmt: skip


def shared(
    name: str, server: VllmServer, prompts: Sequence[tuple[list[int], Fields, Fields]]
) -> list[Figure]:
    """Ask every prompt with spans, and with plain salts, and compare what was computed.

    Args:
        prompts: Token ids, fields with a span, fields of a plain scope, for each requester.
    """
    forget(server)
    spans = [ask(server, token_ids, with_span) for token_ids, with_span, _ in prompts]
    salts = [ask(server, token_ids, plain) for token_ids, _, plain in prompts]
    computed = [
        sum(len(p[0]) - cached for p, (_, cached) in zip(prompts, answers, strict=True))
        for answers in (spans, salts)
    ]
    later = [
        min(taken for taken, _ in answers[-max(1, len(answers) - 1) :])
        for answers in (spans, salts)
    ]
    return [
        Figure(name=f"{name}: tokens computed, spans / salts", value=computed[0], unit="tokens",
               baseline=computed[1]),
        Figure(name=f"{name}: TTFT after the first, spans / salts", value=later[0], unit="ms",
               baseline=later[1]),
    ]  # fmt: skip


def spans(server: VllmServer, minter: Minter) -> list[Figure]:
    public, system = draw("public", PREFIX), draw("system", PREFIX)
    ask(server, [*public, 7], minter.warm_up("p"))
    # Where the salts are plain, nobody may find the prefix by its public name: other tokens.
    figures = []
    time.sleep(2.5)
    for count in (1, 4, 16):
        prompts = []
        for tenant in TENANTS[:count]:
            rest = draw((tenant, count), 64)
            mine = minter.conversation(tenant, f"public-{count}")
            prompts.append((public + rest, mine, {"cache_salt": f"plain-{tenant}-{count}"}))
        figures += shared(f"{count} tenants, public prefix of {PREFIX}", server, prompts)
    prompts = []
    for number in range(16):
        rest = draw(("conversation", number), 64)
        mine = minter.conversation("t0", f"system-{number}", system=system)
        prompts.append((system + rest, mine, minter.conversation("t1", f"plain-{number}")))
    return figures + shared(f"16 conversations, system prompt of {PREFIX}", server, prompts)


def smollm2() -> Path:
    gguf = fetch_smollm2(cache_folder())
    folder = gguf.parent / "smollm2-vllm"
    subprocess.run(
        [PYTHON, str(ROOT / "tools" / "convert_smollm2.py"), str(gguf), str(folder)], check=True
    )
    return folder


def measure_hits(bench: Bench, folder: Path) -> list[Figure]:
    policy, minter = bench.ward("hits")
    plain_policy, plain_minter = bench.ward("plain-hits")
    transfer = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "shared")},
    }
    with (
        bench.start("sealed", warded(policy)) as sealed,
        bench.start(
            "plain",
            ward_arguments(module="engines.plain_connector", name="PlainConnector",
                           policy=str(plain_policy), lookup_ms=500.0, load_s=10.0),
            PYTHONPATH=f"{ROOT / 'src'}:{ROOT / 'tests'}",
        ) as plain,
        bench.start("example", ["--kv-transfer-config", json.dumps(transfer)]) as example,
    ):  # fmt: skip
        return hits(sealed, plain, example, (minter, plain_minter))


def measure_throughput(bench: Bench, folder: Path) -> list[Figure]:  # noqa: ARG001 - like the others
    policy, minter = bench.ward("load")
    with bench.start("loaded", warded(policy)) as sealed, bench.start("stock", []) as stock:
        return throughputs(sealed, stock, minter)


def measure_spans(bench: Bench, folder: Path) -> list[Figure]:  # noqa: ARG001 - like the others
    policy, minter = bench.ward("spans")
    with bench.start("spanning", warded(policy)) as server:
        return spans(server, minter)


PARTS = {"hits": measure_hits, "throughput": measure_throughput, "spans": measure_spans}


def main() -> int:
    names = sys.argv[1:] or list(PARTS)
    if wrong := [name for name in names if name not in PARTS]:
        print(f"There is no part {wrong[0]!r}; there are {', '.join(PARTS)}.", file=sys.stderr)
        return 3
    if not PYTHON:
        print("KVWARD_VLLM_PYTHON is not set; run: make bench-vllm", file=sys.stderr)
        return 3
    figures = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        bench = Bench(Path(name), smollm2(), stack)
        for part in names:
            figures += PARTS[part](bench, Path(name))
    return publish("vllm", figures)


if __name__ == "__main__":
    sys.exit(main())
