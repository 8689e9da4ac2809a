"""Identity of blocks."""

import pytest

from kvward.blocks.chain import derive_chain_link, derive_chain_root


def test_root_depends_on_model_and_scope_and_absence_is_a_scope_of_its_own() -> None:
    roots = [
        derive_chain_root(manifest_digest=digest, scope=scope)
        for digest in (b"m", b"n")
        for scope in (None, "", "a", "b")
    ]
    assert len(set(roots)) == len(roots)
    assert all(len(root) == 32 for root in roots)


def test_model_and_scope_do_not_run_into_each_other() -> None:
    one = derive_chain_root(manifest_digest=b"ab", scope="c")
    two = derive_chain_root(manifest_digest=b"a", scope="bc")
    assert one != two


def test_link_depends_on_everything_before_it() -> None:
    root = derive_chain_root(manifest_digest=b"m", scope="a")
    one, two = (
        derive_chain_link(root, [1, 2], extras=()),
        derive_chain_link(root, [2, 1], extras=()),
    )
    assert one != two
    assert derive_chain_link(one, [3, 4], extras=()) != derive_chain_link(two, [3, 4], extras=())
    assert derive_chain_link(root, [1, 2], extras=()) == one


def test_token_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Exception, match="format"):
        derive_chain_link(b"p", [2**32], extras=())


def test_link_depends_on_every_other_input() -> None:
    links = {
        derive_chain_link(b"p", [1, 2], extras=extras)
        for extras in ((), ("a",), (b"a",), ("a", "b"), ("ab",), (("a", "b"),), (None,), (0,))
    }
    assert len(links) == 8


def test_what_comes_with_a_block_is_never_left_to_a_default() -> None:
    with pytest.raises(TypeError):
        derive_chain_link(b"p", [1])  # type: ignore[call-arg]
