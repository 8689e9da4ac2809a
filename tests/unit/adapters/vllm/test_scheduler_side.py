"""The scheduler's half, driven in the order in which vLLM's scheduler does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.adapters.vllm.adapter_files import AdapterFiles
from kvward.adapters.vllm.transfers import PlacedBlock
from vllm_engine import BLOCK, FakeEngine, FakeRequest, Ward, feature

PROMPT = list(range(1, 4 * BLOCK + 2))  # four full blocks and a token
PUBLIC = PROMPT[: 2 * BLOCK]


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(folder=tmp_path)
    yield ward
    ward.close()


@pytest.fixture
def engine(ward: Ward) -> Iterator[FakeEngine]:
    engine = FakeEngine(ward)
    yield engine
    engine.close()


class Gate:
    """A store whose look-ups wait until they may go on, and count."""

    def __init__(self, ward: Ward) -> None:
        self.may_go = threading.Event()
        self._store = ward.store

    def scope(self, owner: Any) -> Any:
        scoped = self._store.scope(owner)

        def contains(hashes: Sequence[bytes]) -> list[bool]:
            assert self.may_go.wait(20)
            return scoped.contains(hashes)

        return SimpleNamespace(contains=contains, load=scoped.load, save=scoped.save)


class Claims:
    """A store that says of every block that it is there, and opens those that `opens` says."""

    def __init__(self, ward: Ward, opens: Sequence[bool] = ()) -> None:
        self._store = ward.store
        self._opens = opens
        self.num_asked = 0

    def scope(self, owner: Any) -> Any:
        scoped = self._store.scope(owner)

        def contains(hashes: Sequence[bytes]) -> list[bool]:
            self.num_asked += 1
            return [True] * len(hashes)

        return SimpleNamespace(contains=contains, load=scoped.load, save=scoped.save)


def reached(request: FakeRequest, *statuses: str) -> Callable[[], bool]:
    return lambda: request.status in statuses


def saved(engine: FakeEngine) -> list[PlacedBlock]:
    return [block for plan in engine.plans for block in plan.saves]


def loaded(engine: FakeEngine) -> list[PlacedBlock]:
    return [block for plan in engine.plans for job in plan.loads for block in job.blocks]


def warm_up(ward: Ward, engine: FakeEngine, token: str, token_ids: Sequence[int]) -> None:
    engine.run(FakeRequest("warm-up", [*token_ids, 0], salt=token, params={}))


def public_names(ward: Ward, engine: FakeEngine, token: str) -> set[bytes]:
    """Return the engine's names of the public blocks, as a warm-up has them."""
    request = FakeRequest("look", [*PUBLIC, 0], salt=token, params={})
    engine.side.arrive(request)
    engine.side.finish(request)
    return set(request.block_hashes)


# Arrive.


def test_arriving_request_gets_our_names_in_place_of_the_engines(
    ward: Ward, engine: FakeEngine
) -> None:
    one, two = ward.request(PROMPT), ward.request(PROMPT)
    other = ward.request(PROMPT, "b")
    for request in (one, two, other):
        engine.side.arrive(request)
    assert one.block_hashes == two.block_hashes
    assert len(one.block_hashes) == 4
    assert not set(one.block_hashes) & {*other.block_hashes, b"vLLM's own"}
    assert engine.side.num_tracked == 3
    for request in (one, two, other):
        engine.side.finish(request)
    assert engine.side.num_tracked == 0


def test_requests_of_odd_forms_arrive_and_find_nothing(ward: Ward, engine: FakeEngine) -> None:
    odd = [
        FakeRequest("1", [], salt=None),
        FakeRequest("2", [], salt=ward.token("a"), params={}),
        FakeRequest("3", [0] * 9, salt=ward.token("a"), prompt_embeds=object()),
        FakeRequest("4", PROMPT, salt=ward.token("a"), prompt_is_token_ids=[True] * len(PROMPT)),
        FakeRequest("5", [2**32 - 1] * 9, salt="\ud800", params={"\ud800": "\ud800"}),
        FakeRequest("6", PROMPT, salt=ward.token("a"), params={"kvward_spans": [[[]]]}),
        FakeRequest("7", PROMPT, salt=None, features=[feature(2**70, -1, identifier="\ud800")]),
        FakeRequest("8", PROMPT, salt=None, features=[feature(0, 3, identifier="")] * 2),
    ]
    for request in odd:
        engine.add(request)
    engine.step_until(
        lambda: all(request.status == "finished" for request in odd if request.num_prompt_tokens)
    )
    assert not any(request.num_local_hits for request in odd)
    assert not loaded(engine)


@pytest.mark.parametrize("params", ["text", 7, ["ab", 1], 1.5])
def test_transfer_params_of_another_type_cost_the_cache_and_not_the_engine(
    ward: Ward, engine: FakeEngine, params: Any
) -> None:
    engine.side.arrive(FakeRequest("1", PROMPT, salt=ward.token("a"), params=params))


@pytest.mark.parametrize("token_id", [-1, 2**32, 2**64])
def test_token_id_out_of_range_costs_the_cache_and_not_the_engine(
    ward: Ward, engine: FakeEngine, token_id: int
) -> None:
    engine.side.arrive(ward.request([token_id] * 9))


# What is found.


def test_same_scope_hits_locally_and_another_does_not(ward: Ward, engine: FakeEngine) -> None:
    one, again, other = (
        ward.request(PROMPT),
        ward.request(PROMPT),
        ward.request(PROMPT, "b"),
    )
    engine.run(one)
    engine.run(again, other)
    assert [r.num_local_hits for r in (one, again, other)] == [0, 4, 0]
    assert not loaded(engine)


def test_stored_blocks_are_loaded_under_the_same_scope_only(ward: Ward, engine: FakeEngine) -> None:
    engine.run(ward.request(PROMPT))
    assert len(saved(engine)) == 4
    engine.forget()
    again, other = ward.request(PROMPT), ward.request(PROMPT, "b")
    engine.run(other)
    assert not loaded(engine)
    engine.run(again)
    assert again.num_loaded_tokens == 4 * BLOCK
    assert len(engine.pages.scattered) == 1
    assert not engine.events.counts().get("vllm.load-failed")


def test_another_engine_with_the_store_finds_what_is_there_and_another_model_does_not(
    ward: Ward, engine: FakeEngine
) -> None:
    engine.run(ward.request(PROMPT))
    for manifest, expected in ((b"m" * 32, 4 * BLOCK), (b"n" * 32, 0)):
        second = FakeEngine(ward, manifest=manifest)
        request = ward.request(PROMPT)
        second.run(request)
        assert request.num_loaded_tokens == expected
        second.close()


def test_load_goes_on_where_the_engines_own_cache_ends(ward: Ward, engine: FakeEngine) -> None:
    engine.run(ward.request(PROMPT))
    engine.forget()
    engine.run(ward.request(PROMPT[: 2 * BLOCK + 1]))  # loads two blocks, which stay
    before = len(loaded(engine))
    request = ward.request(PROMPT)
    engine.run(request)
    assert (request.num_local_hits, request.num_loaded_tokens) == (2, 2 * BLOCK)
    assert len(loaded(engine)) - before == 2


def test_last_token_of_a_prompt_is_always_computed(ward: Ward, engine: FakeEngine) -> None:
    prompt = PROMPT[: 4 * BLOCK]
    engine.run(ward.request(prompt))
    engine.forget()
    request = ward.request(prompt)
    engine.run(request)
    assert request.num_loaded_tokens == 3 * BLOCK


def test_conversation_shares_its_span_with_the_tenant_and_nothing_else(
    ward: Ward, engine: FakeEngine
) -> None:
    span = PROMPT[: 2 * BLOCK]
    requests = [
        ward.request(PROMPT, tenant, name, params=ward.params(tenant, name, span=span))
        for tenant, name in (("a", "c"), ("a", "d"), ("b", "c"))
    ]
    for request in requests:
        engine.run(request)
    assert [request.num_local_hits for request in requests] == [0, 2, 0]
    engine.forget()
    third = ward.request(PROMPT, "a", "e", params=ward.params("a", "e", span=span))
    engine.run(third)
    assert third.num_loaded_tokens == 2 * BLOCK


def test_request_waits_for_its_answer_and_takes_it_when_it_comes(ward: Ward) -> None:
    first = FakeEngine(ward)
    first.run(ward.request(PROMPT))
    first.close()
    gate = Gate(ward)
    engine = FakeEngine(ward, store=gate)
    waiting, other = ward.request(PROMPT), FakeRequest("other", PROMPT, salt=None)
    engine.add(waiting)
    engine.run(other)  # whoever asks nothing is not kept waiting
    assert (waiting.status, other.status) == ("waiting", "finished")
    gate.may_go.set()
    engine.step_until(lambda: waiting.status == "finished")
    assert waiting.num_loaded_tokens == 4 * BLOCK
    engine.close()


def test_answer_that_is_late_is_none(ward: Ward) -> None:
    gate = Gate(ward)
    engine = FakeEngine(ward, store=gate, lookup_s=0.01)
    request = ward.request(PROMPT)
    engine.run(request)
    assert request.num_loaded_tokens == 0
    assert engine.events.counts()["vllm.lookup-late"] >= 1
    gate.may_go.set()
    engine.close()


def test_request_that_does_not_fit_is_matched_again(ward: Ward, engine: FakeEngine) -> None:
    engine.run(ward.request(PROMPT))
    engine.forget()
    request = ward.request(PROMPT)
    engine.has_room = False
    engine.add(request)
    engine.step_until(lambda: engine.events.counts().get("vllm.hit-offered", 0) >= 2)
    assert not loaded(engine)
    # Meanwhile another one brings half of it into the engine's own cache.
    engine.cache.clear()
    engine.has_room = True
    engine.step_until(lambda: request.status == "finished")
    assert request.num_loaded_tokens == 4 * BLOCK
    assert len(loaded(engine)) == 4


def test_two_requests_load_the_same_blocks_each_into_pages_of_its_own(
    ward: Ward, engine: FakeEngine
) -> None:
    engine.run(ward.request(PROMPT))
    engine.forget()
    engine.run(ward.request(PROMPT), ward.request(PROMPT))
    places = [block.block_id for block in loaded(engine)]
    assert len(places) in {4, 8}
    assert len(set(places)) == len(places)


# Prompt logprobs.


def test_request_for_prompt_logprobs_reads_nothing_and_keeps_what_it_computes(
    ward: Ward, engine: FakeEngine
) -> None:
    engine.run(ward.request(PROMPT))
    request = ward.request(PROMPT, skip_reading=True)
    engine.run(request)
    assert (request.num_local_hits, request.num_loaded_tokens) == (0, 0)
    assert not loaded(engine)


def test_request_for_prompt_logprobs_makes_no_public_blocks(ward: Ward) -> None:
    token = ward.register("p", PUBLIC, stored=False)
    engine = FakeEngine(ward, has_store=False)
    engine.run(ward.request(PROMPT, skip_reading=True))
    assert not set(engine.cache) & public_names(ward, engine, token)


def test_request_for_prompt_logprobs_makes_no_public_blocks_while_the_store_thinks(
    ward: Ward,
) -> None:
    token = ward.register("p", PUBLIC)
    gate = Gate(ward)
    engine = FakeEngine(ward, store=gate)
    try:
        request = ward.request(PROMPT, skip_reading=True)
        engine.add(request)
        engine.step()
        assert not set(engine.cache) & public_names(ward, engine, token)
    finally:
        gate.may_go.set()
        engine.close()


# Public prefixes.


def test_public_prefix_that_was_warmed_up_is_found_by_every_tenant(
    ward: Ward, engine: FakeEngine
) -> None:
    token = ward.register("p", PUBLIC)
    warm_up(ward, engine, token, PUBLIC)
    one, two = ward.request(PROMPT), ward.request(PROMPT, "b")
    engine.run(one)
    engine.run(two)
    assert [r.num_local_hits for r in (one, two)] == [2, 2]
    engine.forget()
    again = ward.request(PROMPT, "b", "new")
    engine.run(again)
    assert again.num_loaded_tokens == 2 * BLOCK


@pytest.mark.parametrize("has_store", [True, False])
def test_public_prefix_that_is_not_there_is_computed_by_each_for_itself(
    ward: Ward, has_store: bool
) -> None:
    token = ward.register("p", PUBLIC, stored=has_store)
    engine = FakeEngine(ward, has_store=has_store)
    one, again, other = ward.request(PROMPT), ward.request(PROMPT), ward.request(PROMPT, "b")
    for request in (one, again, other):
        engine.run(request)
    assert [r.num_local_hits for r in (one, again, other)] == [0, 4, 0]
    assert not set(engine.cache) & public_names(ward, engine, token)
    public = ward.keyring.tenant_id("kvward/public")
    assert public not in {block.owner.tenant_id for block in saved(engine)}
    engine.close()


def test_part_of_a_public_prefix_is_read_and_the_rest_is_computed_in_private(
    ward: Ward, engine: FakeEngine
) -> None:
    token = ward.register("p", PUBLIC)
    warm_up(ward, engine, token, PUBLIC[:BLOCK])  # tokens of no prefix: nobody's
    assert not saved(engine)
    ward.public.clear()
    token = ward.register("p", PUBLIC[:BLOCK])
    warm_up(ward, engine, token, PUBLIC[:BLOCK])
    request = ward.request(PROMPT)
    engine.run(request)
    assert request.num_local_hits == 1
    assert {block.owner.tenant_id for block in saved(engine)[1:]} == {ward.keyring.tenant_id("a")}


def test_public_blocks_evicted_between_arrival_and_match_are_not_made_again(
    ward: Ward,
) -> None:
    token = ward.register("p", PUBLIC, stored=False)
    engine = FakeEngine(ward, has_store=False)
    warm_up(ward, engine, token, PUBLIC)
    request = engine.add(ward.request(PROMPT))
    engine.forget()
    engine.step_until(lambda: request.status == "finished")
    assert request.num_local_hits == 0
    assert not set(engine.cache) & public_names(ward, engine, token)
    assert engine.events.counts()["vllm.public-not-there"] == 1


def test_public_blocks_evicted_before_a_preempted_request_returns_are_not_made_again(
    ward: Ward,
) -> None:
    token = ward.register("p", PUBLIC, stored=False)
    engine = FakeEngine(ward, has_store=False)
    warm_up(ward, engine, token, PUBLIC)
    request = engine.add(ward.request(PROMPT, max_tokens=9))
    engine.step_until(lambda: request.num_tokens > len(PROMPT) + 4)
    assert request.num_local_hits == 2
    engine.preempt(request)
    engine.forget()
    engine.step_until(lambda: request.status == "finished")
    assert not set(engine.cache) & public_names(ward, engine, token)


def test_prefix_that_is_no_longer_registered_while_a_request_waits_is_not_made(
    ward: Ward,
) -> None:
    token = ward.register("p", PUBLIC, stored=False)
    engine = FakeEngine(ward, has_store=False)
    request = engine.add(ward.request(PROMPT))
    names = public_names(ward, engine, token)
    ward.public.clear()
    engine.step_until(lambda: request.status == "finished")
    assert not set(engine.cache) & names


def test_public_blocks_that_do_not_open_are_computed_in_private(ward: Ward) -> None:
    token = ward.register("p", PUBLIC)
    claims = Claims(ward)
    engine = FakeEngine(ward, store=claims)
    request = ward.request(PROMPT)
    engine.run(request)
    assert request.num_loaded_tokens == 4 * BLOCK  # offered; nothing of it opened
    assert engine.events.counts()["vllm.load-failed"] == 1
    assert not engine.pages.scattered
    assert not set(engine.cache) & public_names(ward, engine, token)
    assert {block.owner.tenant_id for block in saved(engine)} == {ward.keyring.tenant_id("a")}
    assert len(saved(engine)) == 4
    engine.close()


# Loads that fail.


def test_load_that_fails_is_computed_and_kept_and_not_tried_again(ward: Ward) -> None:
    engine = FakeEngine(ward, store=Claims(ward))
    request = ward.request(PROMPT)
    engine.run(request)
    assert len(loaded(engine)) == 4
    assert len(saved(engine)) == 4
    assert not request.num_local_hits
    engine.close()


def test_load_that_fails_half_way_keeps_its_valid_part(ward: Ward, engine: FakeEngine) -> None:
    engine.run(ward.request(PROMPT[: 2 * BLOCK + 1]))
    second = FakeEngine(ward, store=Claims(ward))
    request = ward.request(PROMPT)
    second.run(request)
    assert [len(places) for places in second.pages.scattered] == [2]
    kept = [block.chain_hash for block in saved(second)]
    assert kept == [block.chain_hash for block in loaded(second)][2:]
    second.close()


def test_request_that_leaves_while_it_loads_leaves_nothing_behind(ward: Ward) -> None:
    engine = FakeEngine(ward, store=Claims(ward))
    request = engine.add(ward.request(PROMPT))
    engine.step_until(lambda: request.status == "loading")
    engine.abort(request)
    assert engine.side.num_tracked == 0
    engine.side.loaded(request.request_id)
    assert engine.side.match(request, 0) == (0, False)
    engine.side.allocate(request, [], 4)
    assert not engine.side.plan(
        SimpleNamespace(
            total_num_scheduled_tokens=1,
            num_scheduled_tokens={request.request_id: 1},
            kv_connector_block_state=SimpleNamespace(resolve_block_ids=None),
        )
    ).loads
    engine.close()


# What is kept.


def test_blocks_are_kept_once_in_the_step_that_fills_them(ward: Ward) -> None:
    engine = FakeEngine(ward, step_tokens=5)
    request = ward.request(PROMPT, max_tokens=10)
    engine.run(request)
    hashes = [block.chain_hash for block in saved(engine)]
    assert len(set(hashes)) == len(hashes) == (request.num_tokens - 1) // BLOCK
    engine.close()


def test_blocks_filled_while_answering_are_found_by_the_next_turn(
    ward: Ward, engine: FakeEngine
) -> None:
    request = ward.request(PROMPT, max_tokens=10)
    engine.run(request)
    engine.forget()
    turn = ward.request([*request.all_token_ids[: request.num_tokens], 1, 2, 3])
    engine.run(turn)
    assert turn.num_loaded_tokens == (request.num_tokens - 1) // BLOCK * BLOCK


def test_preempted_request_keeps_no_block_twice(ward: Ward, engine: FakeEngine) -> None:
    request = engine.add(ward.request(PROMPT, max_tokens=10))
    engine.step_until(lambda: request.num_tokens > len(PROMPT) + 5)
    engine.preempt(request)
    engine.forget()
    engine.step_until(lambda: request.status == "finished")
    hashes = [block.chain_hash for block in saved(engine)]
    assert len(set(hashes)) == len(hashes) == (request.num_tokens - 1) // BLOCK


def test_nothing_is_kept_without_an_owner_or_a_store(ward: Ward, engine: FakeEngine) -> None:
    ownerless = ward.params("a", owner=False, span=PROMPT[:8])
    engine.run(ward.request(PROMPT, params=ownerless))
    engine.run(ward.request(PROMPT, params=ward.params("b")))
    engine.run(FakeRequest("nobody", PROMPT, salt="kw1.forged", params=ward.params("a")))
    assert not saved(engine)
    storeless = FakeEngine(ward, has_store=False)
    storeless.run(ward.request(PROMPT))
    assert not saved(storeless)


def test_image_of_another_keeps_conversations_apart_and_a_name_is_no_digest(
    ward: Ward, engine: FakeEngine
) -> None:
    def hits(identifier: str) -> int:
        request = ward.request(PROMPT, features=[feature(5, 2, identifier=identifier)])
        engine.run(request)
        return request.num_local_hits

    assert [hits("1" * 64), hits("2" * 64), hits("1" * 64)] == [0, 1, 4]
    assert [hits(name) for name in ("cat.png", "1" * 63, "A" * 64)] == [1, 1, 1]


def test_hash_with_a_line_break_is_a_name(ward: Ward, engine: FakeEngine) -> None:
    for expected in (0, 1):
        request = ward.request(PROMPT, features=[feature(5, 2, identifier="1" * 64 + "\n")])
        engine.run(request)
        assert request.num_local_hits == expected


# Sessions that take further input.


def test_session_that_goes_on_arriving_is_nobodys(ward: Ward, engine: FakeEngine) -> None:
    # vLLM takes its last token back and goes on with others, and images may come later.
    session = ward.request(PROMPT, resumable=True)
    engine.side.arrive(session)
    fresh, again = ward.request(PROMPT), ward.request(PROMPT, resumable=True)
    engine.side.arrive(fresh)
    engine.side.arrive(again)
    assert not set(session.block_hashes) & {*fresh.block_hashes, *again.block_hashes}


# Adapters.


def adapter(folder: Path, *, number: int = 1, is_reloaded: bool = False) -> Any:
    return SimpleNamespace(lora_int_id=number, lora_path=str(folder), load_inplace=is_reloaded)


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter.safetensors").write_bytes(b"one")
    return folder


def adapter_engine(ward: Ward, *, are_immutable: bool) -> FakeEngine:
    files = AdapterFiles(
        started_unix_s=0 if not are_immutable else 2**40,
        are_immutable=are_immutable,
        events=ward.events,
    )
    return FakeEngine(ward, adapters=files)


def test_adapters_are_kept_apart_by_content(ward: Ward, lora: Path, tmp_path: Path) -> None:
    engine = adapter_engine(ward, are_immutable=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "adapter.safetensors").write_bytes(b"two")
    hits = []
    for asked in (None, adapter(lora), adapter(other, number=2), adapter(lora), None):
        request = ward.request(PROMPT, lora=asked)
        engine.run(request)
        hits.append(request.num_local_hits)
    assert hits == [0, 0, 0, 4, 4]
    engine.close()


def test_adapter_of_unknown_content_is_cached_for_nobody(ward: Ward, lora: Path) -> None:
    engine = adapter_engine(ward, are_immutable=False)  # newer than the engine
    for _ in range(2):
        request = ward.request(PROMPT, lora=adapter(lora))
        engine.run(request)
        assert request.num_local_hits == 0
    assert not saved(engine)
    assert engine.events.counts()["vllm.adapter-unknown:newer-than-the-engine"] == 2
    engine.close()


def test_adapter_that_changes_around_its_request_keeps_nothing(ward: Ward, lora: Path) -> None:
    engine = FakeEngine(
        ward, adapters=AdapterFiles(started_unix_s=0, are_immutable=False, events=ward.events)
    )
    request = ward.request(PROMPT, lora=adapter(lora, is_reloaded=True))
    engine.add(request)
    (lora / "adapter.safetensors").write_bytes(b"another")
    engine.step_until(lambda: request.status == "finished")
    assert not saved(engine)
    assert engine.events.counts()["vllm.uncacheable:adapter-changed-meanwhile"] >= 1
    engine.close()


def test_request_admitted_before_its_adapter_was_replaced_keeps_nothing_after_it(
    ward: Ward, lora: Path
) -> None:
    files = AdapterFiles(started_unix_s=2**33, are_immutable=False, events=ward.events)
    engine = FakeEngine(ward, adapters=files, step_tokens=BLOCK)
    request = engine.add(ward.request(PROMPT, lora=adapter(lora)))
    engine.step_until(lambda: len(saved(engine)) == 1)
    (lora / "adapter.safetensors").write_bytes(b"another")
    reload = ward.request([7], "b", lora=adapter(lora, is_reloaded=True))
    engine.side.arrive(reload)  # the engine now computes with the other content for both
    engine.step_until(lambda: request.status == "finished")
    engine.close()
    assert len(saved(engine)) == 1


# All together.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["c", "d"]),
        st.integers(0, 17),
        st.booleans(),
        st.sampled_from(["run", "run", "run", "forget", "preempt", "abort", "public"]),
    ),
    max_size=10,
)


@settings(max_examples=25)
@given(STEPS)
def test_what_a_tenant_finds_does_not_depend_on_the_other(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bool, str]]
) -> None:
    """The fake engine itself checks that every block served was made of the request's tokens."""

    def play(tenants: str) -> list[tuple[int, int]]:
        ward = Ward(folder=tmp_path_factory.mktemp("ward"))
        token = ward.register("p", PUBLIC)
        engine = FakeEngine(ward)
        found = []
        try:
            for number, (tenant, name, length, with_span, kind) in enumerate(steps):
                if kind == "forget":
                    engine.forget()
                elif kind == "public":
                    engine.run(FakeRequest(f"warm-{number}", [*PUBLIC, 0], salt=token, params={}))
                elif tenant in tenants:
                    prompt = PROMPT[:length] or [1]
                    span = prompt[: length // 2] if with_span else ()
                    request = engine.add(
                        ward.request(
                            prompt,
                            tenant,
                            name,
                            params=ward.params(tenant, name, span=span),
                            max_tokens=6,
                        )
                    )
                    engine.step_until(reached(request, "running", "finished"))
                    # Where a public block comes from, engine or store, depends on who read it
                    # last; that it is found does not.
                    hits = request.num_local_hits * BLOCK + request.num_loaded_tokens
                    if tenant == "a":
                        found.append((number, hits))
                    if kind == "preempt" and request.status == "running":
                        engine.preempt(request)
                    if kind == "abort" and request.status == "running":
                        engine.abort(request)
                    engine.step_until(reached(request, "finished"))
                    engine.settle()
            assert engine.side.num_tracked == 0
        finally:
            engine.close()
            ward.close()
        return found

    assert play("ab") == play("a")
