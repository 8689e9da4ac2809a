"""The plan of a churn run: seeded, and with everything in it that it is made for."""

from dataclasses import replace
from itertools import islice

from attacks.churn.plan import Moment, Move, Shape, all_sessions, client_sessions, iter_steps

SHAPE = Shape(
    seed=7,
    tenants=("a", "b", "c"),
    clients=6,
    block_tokens=16,
    longest_tokens=400,
    answer_tokens=32,
)
STEPS = [step for client in range(6) for step in islice(iter_steps(SHAPE, client), 200)]
ORDERS = [order for step in STEPS for order in step.orders]


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    other = replace(SHAPE, seed=8)
    steps = list(islice(iter_steps(SHAPE, 1), 50))
    assert steps == list(islice(iter_steps(SHAPE, 1), 50))
    assert steps != list(islice(iter_steps(other, 1), 50))
    assert steps != list(islice(iter_steps(SHAPE, 4), 50))


def test_every_client_has_sessions_of_its_own_under_names_that_tenants_share() -> None:
    sessions = all_sessions(SHAPE)
    assert len({(s.tenant, s.conversation) for s in sessions}) == len(sessions)
    assert len({s.canary for s in sessions}) == len(sessions)
    names = {tenant: {s.conversation for s in sessions if s.tenant == tenant} for tenant in "abc"}
    assert names["a"] == names["b"] == names["c"]
    assert {s.tenant for s in client_sessions(SHAPE, 4)} == {"b"}


def test_every_request_stays_in_its_client_session_and_its_bounds() -> None:
    sessions = set(all_sessions(SHAPE))
    for order in ORDERS:
        assert order.session in sessions
        assert order.prompt.own_words <= set(order.session.canary)
        assert 1 <= len(order.prompt.words) <= 400
        assert 1 <= order.max_tokens <= 32


def test_every_move_and_every_moment_of_leaving_happens() -> None:
    assert {step.move for step in STEPS} == set(Move)
    assert {order.leave.moment for order in ORDERS if order.leave} == set(Moment)
    assert {order.streams for order in ORDERS} == {True, False}
    assert {1, 32} <= {order.max_tokens for order in ORDERS}


def test_only_a_stream_is_left_in_its_middle_and_before_its_end() -> None:
    for order in ORDERS:
        if order.leave and order.leave.moment is Moment.MID_STREAM:
            assert order.streams
            assert 1 <= order.leave.parts < order.max_tokens


def test_a_cancel_is_followed_by_the_same_request_to_its_end() -> None:
    cancels = [step for step in STEPS if step.move is Move.CANCEL]
    assert {len(step.orders) for step in cancels} == {2, 3}
    for step in cancels:
        assert not step.together
        assert step.orders[-1].leave is None
        assert all(replace(order, leave=None) == step.orders[-1] for order in step.orders)
        assert all(order.leave for order in step.orders[:-1])


def test_a_burst_is_one_prefix_several_times_at_once() -> None:
    bursts = [step for step in STEPS if step.move is Move.BURST]
    for step in bursts:
        assert step.together
        assert 3 <= len(step.orders) <= 6
        assert step.orders[0].prompt == step.orders[1].prompt
    assert any(order.leave for step in bursts for order in step.orders)


def test_repeats_and_next_turns_come_back_to_earlier_prompts() -> None:
    seen: set[tuple[str, ...]] = set()
    repeats = extensions = 0
    for step in islice(iter_steps(SHAPE, 0), 200):
        words = step.orders[0].prompt.words
        if step.move is Move.REPEAT:
            assert words in seen
            repeats += 1
        elif step.move is Move.NEXT_TURN:
            extensions += any(words[: len(old)] == old for old in seen)
        seen.update(order.prompt.words for order in step.orders)
    assert repeats > 10
    assert extensions > 10
