"""Renders chat templates: programs in Jinja that came with a model, run without access to anything else."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from localspec.models.messages import Message


def render_template(
    template: str,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
    switches: Mapping[str, bool] | None = None,
) -> str:
    """Returns the text that a template makes of a conversation; `special_tokens` by name, such as bos_token.

    `switches` are variables of the template's own, such as enable_thinking.

    Templates see what transformers gives them, and render the same text. One may fail in any way that a program can.
    """
    return _compiled(template).render(
        messages=[dict(message) for message in messages],
        tools=None,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **{**special_tokens, **(switches or {})},
    )


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace, dict=_Dict()
    )
    return environment.from_string(template)


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what the assistant said, for training; it adds nothing."""

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        # A scope of its own, as the block has in transformers.
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))]


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which lead into Python."""

    def __init__(*args: Any, **attributes: Any) -> None:  # so that an attribute may be called self
        self, given = args[0], dict(*args[1:], **attributes)
        for name in given:
            _refuse_private(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name!r} begins with an underscore")


class _Dict:
    """What templates may do with `dict`, and nothing of what Python's class leads to."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own would escape HTML."""
    known = {"ensure_ascii": False, "indent": None, "separators": None, "sort_keys": False}
    return json.dumps(value, **{**known, **options})


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the user's own time, as templates expect it
