"""The notation of attention patterns: every documented form, and what is refused."""

from collections.abc import Sequence

import pytest

from sightline.layers import Spec, format_pattern, parse_pattern

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
    ("attention", "message"),
    [
        ("inlin", r"no mechanism 'inlin'; did you mean 'inline'\?"),
        ("qqq", r"no mechanism 'qqq'\. There are: softmax, linear, inline, soft, soft_norm, linformer, .*, none"),
        ("", r"no mechanism ''"),
        ("inline,,inline", r"no mechanism ''"),
        ("inline,inline", r"has 2 parts; give one for the model, 3 \(one a stage\) or 7 \(one a block\)"),
        (["inline"] * 5, r"has 5 parts"),
        ([], r"has 0 parts"),
        ("none,none,inline*2", r"'inline\*2' does not make the 4 blocks of its stage"),
        ("none,none,inline*5", r"'inline\*5' does not make the 4 blocks of its stage"),
        ("none,none,inline*3+softmax*2", r"does not make the 4 blocks.*inline\*2\+softmax\*2"),
        ("none,none,inline+softmax", r"does not make the 4 blocks of its stage; write counts that add up"),
        ("none,none,inline*two", r"'inline\*two' needs a whole number after \*"),
        ("none,none,inline*-1+softmax", r"needs a whole number after \*"),
        ("none,none,inline*", r"needs a whole number after \*"),
        (["none", "none", ["inline", "softmax"]], r"does not make the 4 blocks"),
        ("inline(phi=relu", r"the bracket is not closed"),
        ("inline(phi=relu)x", r"the bracket is not closed"),
        ("none,softmax(),inline(fi=relu)", r"inline has no option 'fi'"),
        (3, r"attention=3: give names of mechanisms"),
        (None, r"attention=None: give names of mechanisms"),
        ([1, 2, 3], r"attention=\[1, 2, 3\]: give names of mechanisms"),
        (["none", "none", ["inline", None]], r"give names of mechanisms"),
    ],
    ids=str,
)
def test_refused_in_one_line(attention: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_pattern(attention, DEPTHS)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("attention=")
    assert "\n" not in text


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
