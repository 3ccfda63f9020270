"""The digest: no order, one value per state, the same whether updated or computed again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from statehold.state import digest
from statehold.state.digest import MODULUS, table_digest

pairs = st.dictionaries(st.text(max_size=4), st.binary(max_size=6), max_size=8)


def of(table: str, content: dict[Any, bytes]) -> int:
    return table_digest(table, list(content), content.values()) % MODULUS


@given(pairs, st.randoms())
def test_the_order_does_not_matter(content: dict[str, bytes], chance: Any) -> None:
    shuffled = list(content.items())
    chance.shuffle(shuffled)
    assert of("t", dict(shuffled)) == of("t", content)


@given(pairs, pairs)
def test_two_states_are_equal_or_their_digests_differ(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (of("t", one) == of("t", other)) == (one == other)


@given(pairs, st.sampled_from(["a", "b", ""]), st.binary(max_size=6))
def test_an_update_is_the_difference_of_two_hashes(content: dict[str, bytes], key: str, value: bytes) -> None:
    before = {key: content[key]} if key in content else {}
    updated = (of("t", content) - of("t", before) + of("t", {key: value})) % MODULUS
    assert updated == of("t", content | {key: value})


def test_table_key_and_value_all_count_and_do_not_run_into_each_other() -> None:
    digests = [
        of("t", {"a": b"b"}),
        of("u", {"a": b"b"}),
        of("t", {"b": b"b"}),
        of("t", {"a": b"a"}),
        of("t", {"ab": b""}),
        of("t", {"": b"ab"}),
        of("ta", {"": b"b"}),
        of("t", {"a": b"b", "b": b"a"}),
        of("t", {"a": b"a", "b": b"b"}),
    ]
    assert len(set(digests)) == len(digests)


def test_a_value_twice_is_not_nothing() -> None:
    """A sum, not XOR: two equal hashes would cancel out."""
    assert (of("t", {"a": b"x"}) * 2) % MODULUS != 0


def test_every_kind_of_key_has_a_digest() -> None:
    contents: list[dict[Any, bytes]] = [{"1": b"v"}, {1: b"v"}, {("1", 1): b"v"}, {(1, "1"): b"v"}]
    assert len({of("t", content) for content in contents}) == 4


@given(st.integers(-(2**200), 2**200))
def test_as_bytes_and_as_text(number: int) -> None:
    assert digest.from_bytes(digest.to_bytes(number)) == number % MODULUS
    assert digest.show(number) == digest.show(digest.to_bytes(number))
    assert len(digest.show(number)) == 32
