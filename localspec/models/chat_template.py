"""Renders chat templates: programs in Jinja that come with a model. They run without access to anything else."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from math import prod
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from localspec.models.encoding import run_with_timeout
from localspec.models.messages import Message


def render_template(
    template: str,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
    switches: Mapping[str, bool] | None = None,
) -> str:
    """Return the text that a template makes of a conversation. `special_tokens` has tokens by name, such as bos_token.

    `switches` are variables of this template only, such as enable_thinking. A template has the same variables as in
    transformers, and renders the same text as there. Raises the errors of the template, TimeoutError after 5 seconds,
    and MemoryError for more than 268 million characters plus 64 per character of the conversation.
    """

    def render() -> str:
        _left.characters = CHARACTERS + 64 * length(messages)
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**special_tokens, **(switches or {})},
        )

    return run_with_timeout(render, SECONDS, end=True)


def length(messages: Sequence[Message]) -> int:
    """Return the number of characters in a conversation."""
    return sum(len(text) for message in messages for text in message.values())


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_printable
    )
    environment.filters["tojson"] = _to_json
    environment.filters.update({name: _limited(name, function) for name, function in environment.filters.items()})
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace, dict=_Dict()
    )
    return environment.from_string(template)


# -- limits ------------------------------------------------------------------------------------------------------------

SECONDS = 5.0  # a template takes milliseconds
TOO_SLOW = f"the template takes longer than {SECONDS:.0f} seconds"
CHARACTERS = 2**28  # of all texts in one rendering
_ITEM = 32  # characters that an item of a new list counts as
_VISIT = 256  # of an item whose text is counted, which takes time
# Filters and methods whose result may be much longer than their arguments.
_GROWING = frozenset((
    "batch", "center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "pprint", "replace", "rjust",
    "slice", "string", "to_bytes", "tojson", "translate", "wordwrap", "xmlattr", "zfill",
))  # fmt: skip
_MOST_BITS = 4096  # of the result of a power or a product
_TOO_MUCH = f"the template makes more than {CHARACTERS // 10**6} million characters"
_TOO_LARGE = f"the template makes a number of more than {_MOST_BITS:,} bits"
# Formats with a large width, or with one that comes from another argument.
_BOUNDLESS = re.compile(r"\d{5}|%[^%a-zA-Z]*\*|\{[^{}]*\{")
_left = threading.local()  # `characters` that the rendering on this thread may still create


class _Code(CodeGenerator):
    """A compiler of templates. The compiled code lets the sandbox count the lengths of joined texts and of slices."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        sliced = isinstance(node.arg, nodes.Slice)
        self.write("environment.counted(" if sliced else "(")
        super().visit_Getitem(node, frame)
        self.write(")")


class _Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja sandbox that limits the size of each result, before it is made, and the sum of all sizes."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    @staticmethod
    def concat(parts: Iterable[Any]) -> str:
        return "".join([str(_printable(part)) for part in parts])

    @staticmethod
    def counted(value: Any) -> Any:
        if isinstance(value, (str, bytes, list, tuple, dict)):
            _spend(len(value) * (1 if isinstance(value, (str, bytes)) else _ITEM))
        return value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(obj, "__wrapped__", obj)  # `format` is wrapped by Jinja
        receiver = getattr(method, "__self__", None)
        if isinstance(receiver, (str, bytes, int)):
            internal = ("_loop_vars", "_block_vars")  # Jinja adds them
            arguments = {name: value for name, value in kwargs.items() if name not in internal}
            args = (*_bounded(method.__name__, [receiver, *args], arguments)[1:],)
        return self.counted(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "%" and isinstance(left, (str, bytes)):
            _bounded("format", [str(left), right], {})
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _refuse_unless(abs(right) * left.bit_length() <= _MOST_BITS, _TOO_LARGE)
        elif operator == "*" and not numbers:
            _refuse_unless(_size(left) * _number(right) * _size(right) * _number(left) <= _left.characters)
        result = self.counted(super().call_binop(context, operator, left, right))
        _refuse_unless(not isinstance(result, int) or result.bit_length() <= 2 * _MOST_BITS, _TOO_LARGE)
        return result


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a template's filter with a limit on the size of each result, and on the sum of all sizes."""

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        return _Sandbox.counted(function(*_bounded(name, args, kwargs), **kwargs))

    return limited


def _bounded(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of the filter or method `name`, with each iterator turned into a list.

    Raises MemoryError if a call with these arguments could return too long a text.
    """
    if name not in _GROWING:
        return args
    args = [list(arg) if isinstance(arg, Iterator) else arg for arg in args]
    texts, rest = [arg for arg in args if isinstance(arg, str)], [*args[1:], *kwargs.values()]
    if name == "replace" and len(texts) > 2 and not kwargs:
        bound = (len(texts[0]) + 1) * len(texts[2])
    elif name.startswith("format") and texts:
        _refuse_unless(not _BOUNDLESS.search(texts[0]))
        bound = (texts[0].count("%") + texts[0].count("{")) * (9999 + sum(map(_size, rest)))
    else:
        bound = prod(map(_size, args)) * prod(map(_size, kwargs.values())) * prod(map(_number, rest))
    _refuse_unless(bound <= _left.characters)
    return args


def _printable(value: Any) -> Any:
    """Count the length of a value's text towards the limit, and return the value."""
    _spend(_size(value))
    return value


def _size(value: Any) -> int:
    """Return roughly how many characters a value's text has, at least 1. Raises MemoryError above a limit."""
    if isinstance(value, (str, bytes)):
        return max(1, len(value))
    if not isinstance(value, (Mapping, list, tuple, set, frozenset, range)):
        return 1
    total = _VISIT
    for item in value.items() if isinstance(value, Mapping) else value:
        total += _VISIT + _size(item)
        _refuse_unless(total <= _left.characters)
    return total


def _number(value: Any) -> int:
    """Return the largest factor by which an argument may lengthen a text: its absolute value if an integer, else 1."""
    return max(1, abs(value)) if isinstance(value, int) else 1


def _spend(characters: int) -> None:
    _left.characters -= characters
    _refuse_unless(_left.characters >= 0)


def _refuse_unless(affordable: bool, message: str = _TOO_MUCH) -> None:
    if not affordable:
        raise MemoryError(message)


# -- names in templates -----------------------------------------------------------------------------------------------


class _Generation(Extension):
    """The tag {% generation %} … {% endgeneration %}, which marks the assistant's text for training.

    It renders its content.
    """

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        # A separate scope, like the block in transformers.
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))]


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, because these give access to Python."""

    def __init__(*args: Any, **attributes: Any) -> None:  # so that an attribute may be named self
        self, values = args[0], dict(*args[1:], **attributes)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:  # Jinja's may be of any length
        return "<Namespace>"


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name!r} begins with an underscore")


class _Dict:
    """The parts of `dict` that templates may use, without access to Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(value: Any, **options: Any) -> str:
    """Return a value as JSON. Jinja's own function would escape HTML."""
    defaults = {"ensure_ascii": False, "indent": None, "separators": None, "sort_keys": False}
    return json.dumps(value, **{**defaults, **options})


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the user's own time, as templates expect it
