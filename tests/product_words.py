"""Every text in the sources of the program, and the help of every command, for messages.toml."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from golden import spelled

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "localspec", ROOT / "tui")
WIDTH = 100
_SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|ATTACH|WITH|BEGIN|VACUUM)\b.*[A-Z]{2}|PRAGMA |.* (IS NULL|WHERE)\b",
    re.DOTALL,
)
_WORD, _VALUE = re.compile(r"[A-Za-z][a-z']+"), re.compile(r"\{[^}]*\}")
_FORMATTING = {
    "join",
    "size",
    "quote",
    "one_line",
    "in_short",
    "shown",
    "shortened",
    "str",
    "repr",
    "round",
    "sorted",
    "map",
    "int",
    "list",
    "gib",
}
_PROTOCOL = re.compile(r"<(!doctype|svg|text|path|rect)\b|default-src |POST |bind |[a-z_]+ = (ON|MEMORY|-?\d+)$")


def sections() -> list[str]:
    """Return the lines of messages.toml that come after the tests' wordings."""
    product = [f"  {spelled(text)}," for text in sorted(products())]
    helps = [f"{spelled(name)} = '''\n{text}'''" for name, text in helped()]
    return ["", "[product]", "texts = [", *product, "]", "", "[help]", *helps]


def products(sources: tuple[Path, ...] = SOURCES) -> set[str]:
    """Return every text of at least three words, with a {name} for each value that the program inserts.

    SQL, markup, headers of HTTP and texts that consist only of values are left out. Files and lines are not named, so moving code changes
    nothing.
    """
    return {
        text
        for source in sources
        for file in source.rglob("*.py")
        for text in _literals(ast.parse(file.read_text("utf-8")))
        if len(text.split()) > 2 and len(_WORD.findall(text)) > 1 and _WORD.search(_VALUE.sub("", text))
        if not _SQL.match(text) and not _PROTOCOL.match(text)
    }


def _literals(node: ast.AST) -> Iterator[str]:
    """Yield the texts below this node. Docstrings, names of types and regular expressions are not texts of the program."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{_name_among(part, node)}}}" for part in node.values
        )  # type: ignore[misc]
        parts: list[ast.AST] = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"cast", "re.compile"}:
        parts = node.args[1:]
    else:
        types = {getattr(node, field, None) for field in ("annotation", "returns")}
        parts = [child for child in ast.iter_child_nodes(node) if child not in types]
        parts += [call for one in types if one for call in ast.walk(one) if isinstance(call, ast.Call)]
    for part in parts:
        yield from _literals(part)


def _name_among(part: ast.AST, text: ast.JoinedStr) -> str:
    """Return a name for an inserted expression: `card_name` for {card.name!r} if {other.name!r} is in the text, too."""
    name = _name(part)
    same = {
        ast.unparse(other) for other in text.values if isinstance(other, ast.FormattedValue) and _name(other) == name
    }
    if len(same) == 1:
        return name
    return next(
        (
            f"{_name(inner.value)}_{name}"
            for inner in ast.walk(part)
            if isinstance(inner, ast.Attribute) and inner.attr == name
        ),
        name,
    )


def _name(part: ast.AST) -> str:
    """Return a name for an inserted expression: `name` for {card.name!r}, and `paths` for {", ".join(map(str, paths))}."""
    match part:
        case ast.FormattedValue(value=value) | ast.Subscript(value=value, slice=ast.Slice()) | ast.Starred(value=value):
            return _name(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Call(func=ast.Name(id="counted"), args=[_, ast.Constant(value=noun), *_]):
            return f"number_of_{noun.replace(' ', '_')}s"
        case ast.Call(func=ast.Name(id="len"), args=[things]):
            return f"number_of_{_name(things)}"
        case ast.JoinedStr(values=parts):
            return next((_name(inner) for inner in parts if isinstance(inner, ast.FormattedValue)), "…")
        case ast.IfExp(body=ast.Constant(), orelse=value):
            return _name(value)
        case ast.Call(func=func, args=args) if _last(func) in _FORMATTING:
            return next((name for name in map(_name, reversed(args)) if name != "…"), _last(func))
        case ast.Call(func=ast.Attribute(value=text, attr="removeprefix" | "removesuffix" | "split" | "rstrip")):
            return _name(text)
        case ast.Call(func=func) | ast.Subscript(value=func) | ast.UnaryOp(operand=func) | ast.IfExp(body=func):
            return _name(func)
        case ast.GeneratorExp(generators=[inner, *_]) | ast.ListComp(generators=[inner, *_]):
            return _name(inner.iter)
        case ast.BinOp(left=left, right=right):
            return _name(right if isinstance(left, ast.Constant) else left)
        case ast.BoolOp(values=[first, *_]) | ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
            return _name(first)
    return "…"


def _last(func: ast.AST) -> str:
    """Return the last name of a function: `join` for `", ".join`."""
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def helped() -> list[tuple[str, str]]:
    """Return each command with the output of its `--help`, at a fixed width."""
    import typer
    from typer.main import get_command

    from localspec.cli.main import app

    def walk(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
        context = typer.Context(command, info_name=path.split()[-1], parent=parent, terminal_width=WIDTH)
        yield path, command.get_help(context).rstrip() + "\n"
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            yield from walk(command.get_command(context, name), f"{path} {name}", context)

    with patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}):
        return list(walk(get_command(app), "localspec", None))
