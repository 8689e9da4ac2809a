"""Different field lists never encode alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.canonical import Field, encode

SCALARS: st.SearchStrategy[Field] = st.one_of(
    st.none(),
    st.binary(max_size=6),
    st.text(max_size=6),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.booleans(),
)
FIELDS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
CALLS = st.tuples(st.text(min_size=1, max_size=4), st.lists(FIELDS, max_size=4))


def typed(field: Field) -> object:
    """Python says True == 1 and 0 == False; the encoding must not."""
    if isinstance(field, list):
        return ("list", tuple(typed(item) for item in field))
    return (type(field).__name__, field)


@given(CALLS, CALLS)
def test_encoding_is_injective(one: tuple[str, list[Field]], two: tuple[str, list[Field]]) -> None:
    same = (one[0], typed(one[1])) == (two[0], typed(two[1]))
    assert (encode(one[0], *one[1]) == encode(two[0], *two[1])) is same


@given(st.lists(st.text(max_size=4), min_size=2, max_size=5), st.data())
def test_moving_a_border_between_fields_changes_the_encoding(
    parts: list[str], data: st.DataObject
) -> None:
    joined = "".join(parts)
    cut = data.draw(st.integers(min_value=0, max_value=len(joined)))
    other = [joined[:cut], joined[cut:]]
    assert (encode("label", *parts) == encode("label", *other)) is (parts == other)


def test_list_and_tuple_are_one_sequence() -> None:
    assert encode("label", ["a", 1]) == encode("label", ("a", 1))


def test_empty_label_is_refused() -> None:
    with pytest.raises(ValueError, match="label"):
        encode("", "a")


@pytest.mark.parametrize("field", [1.5, {"a": 1}, {1}, object()])
def test_unknown_type_is_refused(field: object) -> None:
    with pytest.raises(TypeError):
        encode("label", field)  # type: ignore[arg-type]
