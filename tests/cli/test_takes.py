"""A command takes records; the command line shows and reads one option for each of their fields."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from daari_mlx.cli.main import app
from daari_mlx.cli.options.command import refuse_unused, takes
from daari_mlx.cli.options.names import DrafterName, RowsName, SchemaName, TeacherName
from daari_mlx.compile.options import ExtractOptions
from daari_mlx.decode.generate import stream_generate
from daari_mlx.decode.options import CacheOptions, Length, Sampling
from daari_mlx.ground.option import Option, number, unescaped, whole
from daari_mlx.tier.options import TierOptions

RECORDS = (TeacherName, RowsName, DrafterName, SchemaName, Sampling, Length, CacheOptions, ExtractOptions, TierOptions)


@dataclass(frozen=True)
class Wheels:
    """How it rolls."""

    count: Annotated[int, number("How many wheels.", 1, 8)] = 4
    size: Annotated[int | str, Option("How large.", "N|any", read=whole(1, "give at least 1, or any", "any"))] = "any"
    spokes: Annotated[list[str] | None, Option("Of what.", "TEXT", read=unescaped)] = None
    inner: int = 7


@dataclass(frozen=True)
class Owner:
    """Whose it is."""

    name: Annotated[str, Option("Who owns it.", "NAME")]
    count: Annotated[int, number("How many carts.", 0)] = 1


def run(command: Any, *args: str) -> Any:
    one = typer.Typer(rich_markup_mode=None)
    one.command()(command)
    return CliRunner().invoke(one, args)


def seen_by(order: str, *args: str, **defaults: Any) -> tuple[Any, ...]:
    """What a command is called with."""
    seen: list[Any] = []

    @takes(order, **defaults)
    def cart(wheels: Wheels, owner: Owner, red: Annotated[bool, Option("Whether it is red.")] = False) -> None:
        seen.extend((wheels, owner, red))

    result = run(cart, *args)
    assert result.exit_code == 0, result.output
    return tuple(seen)


def test_a_value_goes_into_each_record_that_has_its_name() -> None:
    order = "name count size red"
    assert seen_by(order, "--name", "Ann") == (Wheels(), Owner("Ann", 4), False)
    args = ("--count", "2", "--size", "3", "--red", "--name", "Ann")
    assert seen_by(order, *args) == (Wheels(2, 3), Owner("Ann", 2), True)


def test_what_a_command_does_not_offer_keeps_its_default() -> None:
    assert seen_by("name red", "--name", "Ann") == (Wheels(), Owner("Ann"), False)
    assert seen_by("name red count", "--name", "Ann", count=3) == (Wheels(3), Owner("Ann", 3), False)
    assert seen_by("name red", name="Bob") == (Wheels(), Owner("Bob"), False)


def test_several_values_are_each_read() -> None:
    wheels, *_ = seen_by("name spokes red", "--name", "Ann", "--spokes", r"a\nb", "--spokes", "c")
    assert wheels.spokes == ["a\nb", "c"]


def test_help_has_the_asked_order_and_a_record_stands_for_the_rest_of_its_fields() -> None:
    @takes("red spokes owner wheels", count=6)
    def cart(wheels: Wheels, owner: Owner, red: Annotated[bool, Option("Whether it is red.")] = False) -> None:
        """Roll."""

    names = [*inspect.signature(cart).parameters]  # "inner" is no option
    assert names == ["red", "spokes", "name", "count", "size"]
    shown = run(cart, "--help").stdout
    places = [shown.index(f"--{name}") for name in names]
    assert places == sorted(places)
    assert "[default: 6;" in shown


def test_a_parameter_of_its_own_describes_an_option_anew() -> None:
    seen: list[Any] = []

    @takes()
    def cart(wheels: Wheels, count: Annotated[int, number("How many, at all.", 0)] = 9) -> None:
        seen.extend((wheels.count, count))

    assert run(cart).exit_code == 0 and seen == [9, 9]
    assert "How many, at all." in run(cart, "--help").stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--size", "0"), "0: give at least 1, or any"),
        (("--size", "large"), "'large': give at least 1, or any"),
        (("--count", "9"), "'--count': Input should be less than or equal to 8"),
        (("--inner", "3"), "No such option"),
        ((), ""),
    ],
)
def test_what_cannot_be_read_is_told_with_usage(args: tuple[str, ...], told: str) -> None:
    @takes("count size spokes")
    def cart(wheels: Wheels) -> None:
        """Roll."""

    result = run(cart, *args)
    assert result.exit_code == (2 if args else 0) and told in result.output


def test_an_option_that_is_not_there_is_a_mistake_of_ours() -> None:
    for order, defaults in (("count spoke", {}), ("count", {"spokes": None}), ("count size", {"colour": 1})):
        with pytest.raises(AssertionError):

            @takes(order, **defaults)
            def cart(wheels: Wheels) -> None:
                """Roll."""

    with pytest.raises(AssertionError):

        @takes("count")
        def other(wheels: Wheels, red: Annotated[bool, Option("Red.")] = False) -> None:
            """Left out of the order."""


def test_only_what_was_typed_is_refused() -> None:
    @takes()
    def cart(ctx: typer.Context, wheels: Wheels) -> None:
        refuse_unused(ctx, "size count", "has no meaning here")

    assert run(cart, "--spokes", "x").exit_code == 0
    result = run(cart, "--count", "4")
    assert result.exit_code == 2 and "--count has no meaning here" in result.output


# --- the records themselves


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_each_option_of_a_record_is_offered_by_a_command_in_its_words(record: Any) -> None:
    """A field that no command offers has no place there, but for what only a notebook may choose."""
    hints = inspect.get_annotations(record, eval_str=True)
    shown = {(p.name, p.help) for c in typer.main.get_command(app).commands.values() for p in c.params}  # type: ignore[attr-defined]
    for field in fields(record):
        if field.name == "dimensions":
            continue
        for option in getattr(hints[field.name], "__metadata__", ()):
            assert (field.name, option.help) in {(name, (text or "").split("  [")[0]) for name, text in shown}


def test_the_records_of_an_answer_are_the_options_of_stream_generate() -> None:
    """Same names and defaults: a record can be handed over whole."""
    options = inspect.signature(stream_generate).parameters
    for record in (Length(), CacheOptions()):
        for name, value in vars(record).items():
            assert options[name].default == value, name


def test_a_record_cannot_change() -> None:
    for record in RECORDS:
        assert record.__dataclass_params__.frozen
