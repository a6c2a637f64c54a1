"""The notation of attention patterns: every documented form, and what is rejected."""

from collections.abc import Sequence

import pytest

from sightline.layers import MECHANISMS, Spec, format_pattern, parse_pattern

DEPTHS = (2, 1, 4)


def names(attention: object, depths: Sequence[int] = DEPTHS) -> list[list[str]]:
    return [[str(spec) for spec in stage] for stage in parse_pattern(attention, depths)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "stages"),
    [
        ("inline", [["inline"] * 2, ["inline"], ["inline"] * 4]),
        (" inline ", [["inline"] * 2, ["inline"], ["inline"] * 4]),
        (["linear"], [["linear"] * 2, ["linear"], ["linear"] * 4]),
        ("inline,softmax,none", [["inline"] * 2, ["softmax"], ["none"] * 4]),
        ("inline, softmax , none", [["inline"] * 2, ["softmax"], ["none"] * 4]),
        (("inline", "softmax", "none"), [["inline"] * 2, ["softmax"], ["none"] * 4]),
        ("none,none,inline*2+softmax*2", [["none"] * 2, ["none"], ["inline"] * 2 + ["softmax"] * 2]),
        ("none,none,inline*1+softmax", [["none"] * 2, ["none"], ["inline"] + ["softmax"] * 3]),
        ("none,none,inline+softmax*1", [["none"] * 2, ["none"], ["inline"] * 3 + ["softmax"]]),
        ("none, none, inline * 2 + softmax", [["none"] * 2, ["none"], ["inline"] * 2 + ["softmax"] * 2]),
        (
            ["none", "none", "inline*1+softmax"],
            [["none"] * 2, ["none"], ["inline"] + ["softmax"] * 3],
        ),
        (
            ["inline", "linear", "none", "soft", "softmax", "soft", "inline"],
            [["inline", "linear"], ["none"], ["soft", "softmax", "soft", "inline"]],
        ),
        (
            "inline,linear,none,soft,softmax,soft,inline",
            [["inline", "linear"], ["none"], ["soft", "softmax", "soft", "inline"]],
        ),
        (
            [["inline", "linear"], ["none"], ["soft", "softmax", "soft", "inline"]],
            [["inline", "linear"], ["none"], ["soft", "softmax", "soft", "inline"]],
        ),
        (
            ["inline", ["none"], ["softmax*3", "inline"]],
            [["inline"] * 2, ["none"], ["softmax"] * 3 + ["inline"]],
        ),
        (
            "inline(phi=relu,residual=false),softmax,linear(phi=exp)*2+none",
            [["inline(phi=relu,residual=false)"] * 2, ["softmax"], ["linear(phi=exp)"] * 2 + ["none"] * 2],
        ),
    ],
    ids=str,
)
def test_forms(attention: object, stages: list[list[str]]) -> None:
    assert names(attention) == stages


def test_one_stage() -> None:
    assert names("inline*1+softmax", (3,)) == [["inline", "softmax", "softmax"]]
    assert names("inline,softmax,none", (3,)) == [["inline", "softmax", "none"]]
    assert names([["inline", "softmax", "none"]], (3,)) == [["inline", "softmax", "none"]]


@pytest.mark.parametrize(
    ("attention", "named"),
    [
        ("inlin", "'inline'"),  # the nearest name
        ("qqq", ", ".join(MECHANISMS)),
        ("", "''"),
        ("inline,,inline", "''"),
        ("inline,inline", "2 parts"),
        (["inline"] * 5, "5 parts"),
        ([], "0 parts"),
        ("none,none,inline*2", "'inline*2'"),
        ("none,none,inline*5", "'inline*5'"),
        ("none,none,inline*3+softmax*2", "'inline*3+softmax*2'"),
        ("none,none,inline+softmax", "'inline+softmax'"),
        ("none,none,inline*two", "'inline*two'"),
        ("none,none,inline*²", "'inline*²'"),
        ("none,none,inline*" + "9" * 4500, "99"),
        ("none,none,inline*-1+softmax", "'inline*-1'"),
        ("none,none,inline*", "'inline*'"),
        (["none", "none", ["inline", "softmax"]], "['inline', 'softmax']"),
        ("inline(phi=relu", "'inline(phi=relu'"),
        ("inline(phi=relu)x", "'inline(phi=relu)x'"),
        ("none,softmax(),inline(fi=relu)", "'fi'"),
        (3, "3"),
        (None, "None"),
        ([1, 2, 3], "[1, 2, 3]"),
        (["none", "none", ["inline", None]], "None"),
    ],
    ids=str,
)
def test_rejected_in_one_line(attention: object, named: str) -> None:
    with pytest.raises(ValueError, match=r"\Aattention=[^\n]+\Z") as caught:
        parse_pattern(attention, DEPTHS)  # type: ignore[arg-type]
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("written", "shortest"),
    [
        ("inline", "inline"),
        ("inline,inline,inline", "inline"),
        ("inline,softmax,softmax", "inline,softmax,softmax"),
        ("none,none,inline*2+softmax", "none,none,inline*2+softmax*2"),
        ("none,none,inline*4", "none,none,inline"),
        ("inline(residual=false)", "inline(residual=false)"),
        ("inline,linear,none,soft,soft,soft,inline", "inline*1+linear*1,none,soft*3+inline*1"),
    ],
)
def test_formatted_is_read_again(written: str, shortest: str) -> None:
    pattern = parse_pattern(written, DEPTHS)
    assert format_pattern(pattern) == shortest
    assert parse_pattern(shortest, DEPTHS) == pattern


def test_equal_stages_of_several_mechanisms_keep_their_commas() -> None:
    pattern = parse_pattern("inline*1+softmax*1,inline*1+softmax*1", (2, 2))
    assert parse_pattern(format_pattern(pattern), (2, 2)) == pattern


@pytest.mark.parametrize("text", ["softmax", "inline", "inline(phi=relu,residual=false)", "soft(ratio=4,iterations=6)"])
def test_specs_are_written_as_read(text: str) -> None:
    assert str(Spec.parse(text)) == text
    assert Spec.parse(f" {text.replace(',', ' , ').replace('(', ' ( ')} ") == Spec.parse(text)
