"""From records to a command line: a command takes records, typer sees one option for each of their fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from daari_mlx.ground.option import Option

Command = Callable[..., None]


def takes(order: str = "", **defaults: Any) -> Callable[[Command], Command]:
    """Make a command of a function whose parameters are records and single options.

    A record is a dataclass; its fields are options, as the function's other parameters are. Each is described by an
    ``Option`` in its ``Annotated`` type. A value goes to the parameter and to every record that has its name, and the
    parameter's description counts.

    Args:
        order: the options' names in the order of ``--help``: all parameters, and those fields that this command
            offers, where a record's parameter stands for those of its fields that are not named otherwise. The other
            fields keep their defaults. Empty for all, in the order of the signature.
        defaults: of single options, where this command's is not the field's; ``...`` requires one.
    """

    def decorate(function: Command) -> Command:
        own = _options(function)
        records = {name: own.pop(name).annotation for name in [*own] if is_dataclass(own[name].annotation)}
        fields = {name: _options(record) for name, record in records.items()}
        options = {
            name: p for found in (*reversed(fields.values()), own) for name, p in found.items()
        }  # the last counts
        asked = order.split() or [*inspect.signature(function).parameters]
        rest = {name: [field for field in found if field not in asked] for name, found in fields.items()}
        names = dict.fromkeys(option for name in asked for option in rest.get(name, [name]))
        if "ctx" in own:
            names = {"ctx": None, **names}
        assert {*own} <= {*names} <= {*options} and {*defaults} <= {*names}, (function.__name__, [*names], defaults)

        @wraps(function)
        def run(**given: Any) -> None:
            made = {
                name: record(**{field: given[field] for field in fields[name] if field in given})
                for name, record in records.items()
            }
            function(**made, **{name: given[name] for name in own})

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_for_typer(options[name], defaults.get(name, options[name].default)) for name in names]
        )
        return run

    return decorate


def _options(thing: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function with their types; of a record those that are options."""
    hints = get_type_hints(thing, include_extras=True)
    found = {name: p.replace(annotation=hints[name]) for name, p in inspect.signature(thing).parameters.items()}
    return {name: p for name, p in found.items() if not is_dataclass(thing) or get_origin(p.annotation) is Annotated}


def _for_typer(option: inspect.Parameter, default: Any) -> inspect.Parameter:
    """An option as typer takes it; what is no option stays as it is."""
    hint = option.annotation
    if get_origin(hint) is Annotated:
        kind, told = get_args(hint)[:2]
        how: dict[str, Any] = {"help": told.help, "metavar": told.value, "min": told.least, "max": told.most}
        if told.read is not None:  # typer need not know the type; that there may be several values it must
            several = any(get_origin(part) is list for part in (kind, *get_args(kind)))
            kind, how["parser"] = list[Any] | None if several else Any, _reader(told)
        flags = told.flags or (f"--{option.name.replace('_', '-')}",)
        hint = Annotated[
            kind,
            typer.Argument(**how) if told.by_place else typer.Option(*flags, show_default=told.shown or True, **how),
        ]
    return option.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _reader(option: Option) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return option.read(value)  # type: ignore[misc]
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return read


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the command line has this option."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(ctx: typer.Context, names: str, why: str) -> None:
    """Raise a usage error where one of these options was given although nothing would come of it."""
    for param in ctx.command.params:
        if param.name in names.split() and is_given(ctx, param.name):
            raise typer.BadParameter(f"{param.opts[0]} {why}", ctx=ctx)
