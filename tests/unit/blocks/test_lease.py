"""Leases refuse what they must and nothing else."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvward.blocks.lease import BlockLeases, Refusal


def test_block_is_readable_by_its_scope_once_committed() -> None:
    leases = BlockLeases()
    assert leases.check_reuse(1, scope="a", name=b"n") is Refusal.LEASE_ENDED
    generation = leases.grant(1, scope="a")
    assert leases.check_reuse(1, scope="a", name=b"n") is Refusal.NOT_COMMITTED
    assert leases.commit(1, generation=generation, name=b"n")
    assert leases.check_reuse(1, scope="a", name=b"n") == generation
    assert leases.check_reuse(1, scope="b", name=b"n") is Refusal.OTHER_SCOPE


def test_block_is_readable_only_under_the_name_of_what_was_written() -> None:
    leases = BlockLeases()
    generation = leases.grant(1, scope="a")
    assert leases.written_for(1, name=b"n") is None
    leases.commit(1, generation=generation, name=b"n")
    assert leases.check_reuse(1, scope="a", name=b"other") is Refusal.OTHER_CONTENT
    assert leases.written_for(1, name=b"other") is None
    assert leases.written_for(1, name=b"n") == "a"
    leases.grant(1, scope="b")
    assert leases.written_for(1, name=b"n") is None


def test_new_grant_ends_every_earlier_lease_and_its_commit() -> None:
    leases = BlockLeases()
    old = leases.grant(1, scope="a")
    leases.commit(1, generation=old, name=b"n")
    new = leases.grant(1, scope="a")
    assert new > old
    assert leases.check_holding([1], [old], scope="a") is Refusal.LEASE_ENDED
    assert not leases.commit(1, generation=old, name=b"n")
    assert leases.check_reuse(1, scope="a", name=b"n") is Refusal.NOT_COMMITTED


def test_holder_may_read_its_own_unwritten_block() -> None:
    leases = BlockLeases()
    generation = leases.grant(1, scope="a")
    assert leases.check_holding([1], [generation], scope="a") is None
    assert leases.check_holding([1], [generation], scope="b") is Refusal.OTHER_SCOPE


class LeaseMachine(RuleBasedStateMachine):
    """Against a model that remembers everything that was ever granted."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = BlockLeases()
        self.granted: list[tuple[int, int, str]] = []
        self.current: dict[int, tuple[int, str]] = {}
        self.committed: set[int] = set()

    @rule(block=st.integers(0, 3), scope=st.sampled_from("ab"))
    def grant(self, block: int, scope: str) -> None:
        generation = self.leases.grant(block, scope=scope)
        assert generation not in {g for _, g, _ in self.granted}
        self.granted.append((block, generation, scope))
        self.current[block] = (generation, scope)

    @rule(data=st.data())
    def commit_any_generation(self, data: st.DataObject) -> None:
        if self.granted:
            block, generation, _ = data.draw(st.sampled_from(self.granted))
            if self.leases.commit(block, generation=generation, name=b"n"):
                self.committed.add(generation)

    @invariant()
    def only_current_committed_leases_of_the_scope_are_readable(self) -> None:
        for block in range(4):
            for scope in "ab":
                answer = self.leases.check_reuse(block, scope=scope, name=b"n")
                generation, owner = self.current.get(block, (0, ""))
                allowed = owner == scope and generation in self.committed
                assert isinstance(answer, Refusal) is not allowed
                if allowed:
                    assert answer == generation

    @invariant()
    def only_current_leases_hold(self) -> None:
        for block, generation, scope in self.granted:
            held = self.leases.check_holding([block], [generation], scope=scope) is None
            assert held is (self.current[block] == (generation, scope))


TestLeaseMachine = LeaseMachine.TestCase


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
def test_one_bad_block_among_many_is_found(blocks: list[int]) -> None:
    leases = BlockLeases()
    generations = [leases.grant(block, scope="a") for block in blocks]
    assert leases.check_holding(blocks, generations, scope="a") is None
    leases.grant(blocks[-1], scope="b")
    assert leases.check_holding(blocks, generations, scope="a") is Refusal.LEASE_ENDED
