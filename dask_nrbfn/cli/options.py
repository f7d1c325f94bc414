"""Options that several commands share."""

import json
from collections.abc import Callable, Container, Mapping
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitParams, Option, Params

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dask_nrbfn.storage.dataset import Dataset


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _storage_options(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Return texts such as ``a.b=1`` as nested dictionaries."""
    options: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        *tables, key = name.split(".")
        if not separator or not all((*tables, key)):
            # The text may be a secret.
            raise click.BadParameter("Give KEY=VALUE.", ctx, param)
        table = options
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise click.BadParameter(f"{part} has a value and subkeys.", ctx, param)
        try:
            table[key] = json.loads(value)
        except ValueError:
            table[key] = value
    return options


def _has_url(value: str | tuple[str, ...]) -> bool:
    texts = (value,) if isinstance(value, str) else value
    return any("://" in text for text in texts)


def _locate(value: str | tuple[str, ...], storage_options: Mapping[str, Any]) -> Any:
    """Return the location, or locations, that an argument names."""
    from dask_nrbfn.storage.location import locate

    if isinstance(value, str):
        return locate(value, storage_options)
    return tuple(locate(text, storage_options) for text in value)


def locations(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds storage options, which apply to the arguments `names`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*context: Any, storage_options: Mapping[str, Any], **values: Any) -> None:
            named = {name: values[name] for name in names if values[name] is not None}
            if storage_options and not any(map(_has_url, named.values())):
                raise ParameterError(
                    "storage options are given without a URL.",
                    "Give a URL such as s3://bucket/name, or leave --storage-option out.",
                )
            located = {name: _locate(value, storage_options) for name, value in named.items()}
            command(*context, **(values | located))

        return click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_storage_options,
            help="For URLs: an option of their fsspec file system, such as "
            "client_kwargs.endpoint_url=http://host:9000. VALUE may be JSON. Secrets are safer in "
            "environment variables.",
        )(run)

    return decorate


class Values(click.ParamType):
    """Values separated by commas."""

    name = "A,B,..."

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self._convert = convert

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the values as a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._convert(part.strip()) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers separated by commas.", param, ctx)


def together(
    *options: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command all `options`, in this order."""
    return lambda command: reduce(
        lambda decorated, option: option(decorated), options[::-1], command
    )


def options_of(
    params: type[Params], *, leave_out: Container[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command parameters as options.

    leave_out: names of parameters that the command does not have.
    """
    return together(
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                type=_type(option),
                default=option.default,
                metavar=option.metavar,
                help=f"{option.help}  [default: {option.default_text}]",
            )
            for name, option in params.options().items()
            if name not in leave_out
        )
    )


class _NumberOrWord(click.ParamType):
    """A number, or a word in its place."""

    name = "number"

    def __init__(self, convert: Callable[[str], Any], words: Container[str]) -> None:
        self._convert, self._words = convert, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number or the word."""
        try:
            return value if value in self._words else self._convert(value)
        except ValueError:
            return value


def _type(option: Option) -> click.ParamType | type:
    if option.several:
        return Values(option.type)
    if option.words:
        return _NumberOrWord(option.type, option.words)
    if option.choices and option.prefix is None:
        return click.Choice(option.choices)
    return option.type


engine_options = together(
    click.option("--scheduler", metavar="ADDRESS", help="A running dask scheduler."),
    click.option("--scheduler-file", metavar="FILE", help="The file that a dask scheduler wrote."),
    click.option(
        "--workers",
        type=int,
        help="Number of local worker processes; 0: run in this process  [default: 0]",
    ),
    click.option("--threads", type=int, help="Threads of each process  [default: all cores]"),
    click.option("--memory", metavar="BYTES", help="Memory limit of each process, such as 4GiB."),
)


schema_option = click.option(
    "--schema",
    metavar="SCHEMA",
    help="Schema that fills missing values of DATASET: a .toml or .json file, or another dataset, "
    "run or model.  [default: the schema of DATASET]",
)


def open_rows(dataset: Any, schema: Any = None) -> "Dataset":
    """Open a dataset; `schema` replaces its schema."""
    from dask_nrbfn.storage.dataset import Dataset

    opened = Dataset.open(dataset)
    if schema is not None:
        from dask_nrbfn.commands.schemas import load_schema

        if opened.schema is None:
            raise ParameterError(
                f"`schema` is {schema}, but {dataset} has no schema: it was made of arrays.",
                "Leave `schema` out.",
            )
        opened = opened.encoded_by(load_schema(schema))
    return opened


def take(options: dict[str, Any], params: type[Params]) -> dict[str, Any]:
    """Remove the values of parameters from the options of a command, and return them."""
    return {name: options.pop(name) for name in params.options() if name in options}


def fit_params(options: dict[str, Any]) -> "tuple[FitParams, NDArray[Any] | None]":
    """Take the parameters of a fit out of `options`; return them and a file's basis."""
    values, known = take(options, FitParams), FitParams.options()["basis"].choices
    source = values["basis"]
    if source in known:
        return FitParams(**values), None
    import numpy as np

    from dask_nrbfn.stages.basis import given_basis

    try:
        basis = np.load(source, allow_pickle=False)
        if not isinstance(basis, np.ndarray):
            raise ValueError("the file is an archive")  # noqa: TRY004
    except (EOFError, FileNotFoundError, ValueError) as error:
        raise ParameterError(
            f"{source} is not an .npy file of numbers.",
            f"Give one of {', '.join(known)}, or the path of an .npy file.",
        ) from error
    del values["basis"]
    return given_basis(FitParams(**values), basis), basis
