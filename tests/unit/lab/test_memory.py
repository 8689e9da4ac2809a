"""Pool, index and host tier keep their promises under any sequence of calls."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvward.lab.index import PrefixIndex
from kvward.lab.offload import HostTier
from kvward.lab.pool import BlockPool

NUM_BLOCKS = 4


class PoolMachine(RuleBasedStateMachine):
    """Blocks are free, held or kept, in exactly one state; kept ones are evicted oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.pool = BlockPool(NUM_BLOCKS, on_evict=self.evicted.append)
        self.holders: dict[int, int] = {}
        self.kept: list[int] = []

    @rule()
    def allocate(self) -> None:
        before = len(self.evicted)
        block = self.pool.allocate()
        unused = NUM_BLOCKS - len(self.holders) - len(self.kept)
        if unused:
            assert block is not None
            assert len(self.evicted) == before
        elif self.kept:
            assert block == self.kept.pop(0) == self.evicted[-1]
        else:
            assert block is None
            return
        assert block not in self.holders
        self.holders[block] = 1

    @precondition(lambda self: self.holders or self.kept)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([*self.holders, *self.kept]))
        self.pool.pin(block)
        if block in self.kept:
            self.kept.remove(block)
        self.holders[block] = self.holders.get(block, 0) + 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        block = data.draw(st.sampled_from(list(self.holders)))
        self.pool.release(block, keep=keep)
        self.holders[block] -= 1
        if not self.holders[block]:
            del self.holders[block]
            if keep:
                self.kept.append(block)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.num_available == NUM_BLOCKS - len(self.holders)
        for block in range(NUM_BLOCKS):
            assert self.pool.holders(block) == self.holders.get(block, 0)
            assert self.pool.is_kept(block) is (block in self.kept)


TestPoolMachine = PoolMachine.TestCase


def test_index_is_one_to_one() -> None:
    index = PrefixIndex()
    assert index.insert(b"x", 1)
    assert not index.insert(b"x", 2)
    assert (index.find(b"x"), index.hash_of(1), index.hash_of(2)) == (1, b"x", None)
    index.remove(2)
    index.remove(1)
    assert index.find(b"x") is None
    assert len(index) == 0


def test_host_tier_keeps_copies_and_drops_the_longest_unused() -> None:
    tier = HostTier(2)
    content = np.ones(3, np.float32)
    tier.store(b"a", content, owner="x")
    content[:] = 7
    tier.store(b"b", content, owner=None)
    fetched = tier.fetch(b"a")
    assert fetched is not None
    assert (fetched.content.tolist(), fetched.owner) == ([1, 1, 1], "x")
    tier.store(b"c", content, owner=None)
    assert tier.fetch(b"b") is None
    assert tier.fetch(b"a") is not None
    nothing = HostTier(0)
    nothing.store(b"a", content, owner=None)
    assert len(nothing) == 0
