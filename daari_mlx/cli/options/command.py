"""From records to a command line: a command takes records, typer sees one option for each of their fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
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
        hints = get_type_hints(function, include_extras=True)
        records = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
        found: dict[str, tuple[Any, Any]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if name in records:
                found = {**_fields(records[name]), **found}
            else:
                found[name] = hints[name], parameter.default
        asked = order.split() or list(found)
        rest = {name: [field for field in _fields(record) if field not in asked] for name, record in records.items()}
        names = dict.fromkeys(option for name in asked for option in rest.get(name, [name]))
        return _flat(function, records, found, list(names), defaults)

    return decorate


def _fields(record: Any) -> dict[str, tuple[Any, Any]]:
    """Type and default of each field that is an option; no default is ``inspect.Parameter.empty``."""
    hints = get_type_hints(record, include_extras=True)
    return {
        field.name: (hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default)
        for field in fields(record)
        if get_origin(hints[field.name]) is Annotated
    }


def _flat(
    function: Command,
    records: dict[str, Any],
    found: dict[str, tuple[Any, Any]],
    names: list[str],
    defaults: dict[str, Any],
) -> Command:
    """The command with one parameter for each of ``names``, which makes the records and calls the function."""
    own = [name for name in inspect.signature(function).parameters if name not in records]
    assert {*own} - {"ctx"} <= {*names} <= {*found} and {*defaults} <= {*names}, (function.__name__, names, defaults)
    names = ["ctx", *names] if "ctx" in own and "ctx" not in names else names

    @wraps(function)
    def run(**given: Any) -> None:
        made = {
            name: record(**{field.name: given[field.name] for field in fields(record) if field.name in given})
            for name, record in records.items()
        }
        function(**made, **{name: given[name] for name in own})

    run.__annotations__ = {name: _typer_type(name, found[name][0]) for name in names}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, found[name][1]),
                annotation=run.__annotations__[name],
            )
            for name in names
        ]
    )
    return run


def _typer_type(name: str, hint: Any) -> Any:
    """The type of an option as typer takes it; what is no option stays as it is."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, option = get_args(hint)[:2]
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    how: dict[str, Any] = {"help": option.help, "metavar": option.value, "min": option.least, "max": option.most}
    if option.read is not None:  # typer need not know the type; that there may be several values it must
        several = any(get_origin(part) is list for part in (kind, *get_args(kind)))
        kind, how["parser"] = list[Any] | None if several else Any, _reader(option)
    if option.by_place:
        return Annotated[kind, typer.Argument(**how)]
    return Annotated[kind, typer.Option(*flags, show_default=option.shown or True, **how)]


def _reader(option: Option) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return option.read(value)  # type: ignore[misc]
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return read


def refuse_unused(ctx: typer.Context, names: str, why: str) -> None:
    """Raise a usage error where one of these options was given although nothing would come of it."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in names.split() and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{param.opts[0]} {why}", ctx=ctx)
