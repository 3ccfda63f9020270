"""The options of `statehold state inputs`, compared with the inputs of the state and of the code."""

from __future__ import annotations

import pytest

from statehold.admin.inputs.requested import StartPosition, request_of, start_in
from statehold.common.input_changes import difference
from statehold.errors import UsageError

BEFORE = ("trades", "prices")


@pytest.mark.parametrize(
    ("after", "options", "hint"),
    [
        (("trades", "prices", "quotes"), "--add quotes=beginning|end|TIME", ""),
        (("trades",), "--remove prices", ""),
        (("prices", "trades"), "--reorder", ""),
        (("prices", "x", "trades"), "--add x=beginning|end|TIME --reorder", ""),
        (
            ("trades", "quotes"),
            "--remove prices --add quotes=beginning|end|TIME",
            ". If the records of prices continue in quotes, use --rename prices=quotes",
        ),
    ],
)
def test_a_difference_names_its_options(after: tuple[str, ...], options: str, hint: str) -> None:
    found = difference(BEFORE, after)
    assert (found.options, found.hint) == (options, hint)


def test_equal_inputs_have_no_difference() -> None:
    assert difference(BEFORE, BEFORE) == ((), (), False)


@pytest.mark.parametrize(
    ("after", "added", "removed", "renamed", "reorder"),
    [
        (("trades", "prices", "quotes"), ["quotes=end"], [], [], False),
        (("quotes", "trades", "prices"), ["quotes=end"], [], [], False),
        (("trades",), [], ["prices"], [], False),
        (("trades", "quotes"), [], [], ["prices=quotes"], False),
        (("prices", "trades"), [], [], [], True),
        (("quotes", "trades"), [], [], ["prices=quotes"], True),
        (("quotes",), ["quotes=end"], ["prices", "trades"], [], False),
    ],
)
def test_options_that_lead_from_the_state_to_the_code_are_accepted(
    after: tuple[str, ...], added: list[str], removed: list[str], renamed: list[str], reorder: bool
) -> None:
    request = request_of(added, removed, renamed, reorder=reorder)
    request.check(BEFORE, after)
    assert request.fits(BEFORE, after)


@pytest.mark.parametrize(
    ("after", "added", "removed", "renamed", "reorder", "said"),
    [
        (("trades",), [], [], [], False, "Next: confirm each difference: --remove prices"),
        (("trades", "prices", "x"), [], [], [], False, "confirm each difference: --add x=beginning|end|TIME"),
        (("trades", "x"), ["x=end"], [], [], False, "confirm each difference: --remove prices"),
        (BEFORE, ["x=end"], [], [], False, "Next: add it to Service(inputs=[...]) first"),
        (BEFORE, [], [], ["prices=x"], False, "prices is to be removed, and the code reads trades, prices"),
        (BEFORE, [], ["prices"], [], False, "Next: take it out of Service(inputs=[...]) first"),
        (("trades",), [], ["prices", "x"], [], False, "x is no input of the state: the state has trades, prices"),
        (BEFORE, ["prices=end"], [], [], False, "prices is an input of the state already"),
        (("prices",), [], [], ["trades=prices"], False, "prices is an input of the state already"),
        (("prices", "trades"), [], [], [], False, "in another order. Next: confirm that with --reorder"),
        (("x", "trades"), [], [], ["prices=x"], False, "in another order"),
        (BEFORE, [], [], [], True, "the order is the same. Next: leave out --reorder"),
    ],
)
def test_options_that_lead_elsewhere_are_rejected(
    after: tuple[str, ...], added: list[str], removed: list[str], renamed: list[str], reorder: bool, said: str
) -> None:
    with pytest.raises(UsageError) as failure:
        request_of(added, removed, renamed, reorder=reorder).check(BEFORE, after)
    assert said in str(failure.value)


def test_positions_are_read() -> None:
    request = request_of(["a=beginning", "b:0=12,b:1=end", "c=1970-01-01T00:00:02Z", "7=5"], [], [])
    assert start_in(request.added["a"], "a", 1, 2) == StartPosition("beginning")
    assert [start_in(request.added["b"], "b", p, 2) for p in (0, 1)] == [
        StartPosition("offset", 12),
        StartPosition("end"),
    ]
    assert start_in(request.added["c"], "c", 0, 2) == StartPosition("time", 2000)
    assert start_in(request.added["7"], "7", 0, 2) == StartPosition("offset", 5)
    for starts, partitions in (
        (request.added["b"], 3),
        (request.added["b"], 1),
        ({-1: StartPosition("end"), **request.added["b"]}, 2),
    ):
        with pytest.raises(UsageError, match=f"--add b: name one position .* partitions 0 to {partitions - 1}"):
            start_in(starts, "b", 0, partitions)


@pytest.mark.parametrize(
    ("added", "removed", "renamed", "said"),
    [
        (["quotes"], [], [], "--add quotes: write quotes=beginning"),
        (["quotes="], [], [], "write quotes=beginning"),
        (["=end"], [], [], "write quotes=beginning"),
        (["quotes:x=end"], [], [], "write quotes=beginning"),
        (["quotes=now"], [], [], "--add quotes 'now': a time such as"),
        (["quotes=-1"], [], [], "--add quotes '-1': a time such as"),
        (["quotes=end", "quotes=beginning"], [], [], "it names quotes twice"),
        ([], [], ["prices"], "--rename prices: write OLD=NEW"),
        ([], [], ["prices=prices"], "write OLD=NEW"),
        ([], [], ["prices=a", "prices=b"], "prices gets two new names"),
        ([], [], ["prices=a", "trades=a"], "a: two options name this topic"),
        (["a=end"], ["a"], [], "a: two options name this topic"),
        ([], ["a", "a"], [], "a: two options name this topic"),
    ],
)
def test_a_wrong_option_is_named(added: list[str], removed: list[str], renamed: list[str], said: str) -> None:
    with pytest.raises(UsageError) as failure:
        request_of(added, removed, renamed)
    assert said in str(failure.value)
