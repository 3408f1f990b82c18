"""How a typed line is read: commands by our names and by those of other programs."""

import pytest
from each import each
from golden import matching

from localspec.chat.commands import read
from localspec.errors import UsageMistake


@each(
    "line, meant",
    [
        ("/bye", ("quit", "")),
        ("/exit", ("quit", "")),
        ("/clear", ("new", "")),
        ("/?", ("help", "")),
        ("/set system You are a pirate.", ("system", "You are a pirate.")),
        ("/set  system  Be kind, and\tbrief", ("system", "Be kind, and\tbrief")),
        ("/set system", ("system", "")),
        ("/set temperature 0.7", ("set", "temperature 0.7")),
        ("/set", ("set", "")),
        ("//bye", ("", "/bye")),
    ],
)
def test_names_of_other_programs(line, meant):
    assert read(line) == meant


@each("line, does", [("/show", "/system"), ("/save chat.md", "history export"), ("/load llama", "/model NAME")])
def test_commands_of_other_programs_are_named_as_ours(line, does):
    with pytest.raises(UsageMistake, match=f"There is no command {line.split()[0]}. .*{does}"):
        read(line)


def test_a_distant_command_is_not_suggested():
    with pytest.raises(UsageMistake, match=matching("there_command_embed_help_lists")):
        read("/embed")
    with pytest.raises(UsageMistake, match=matching("did_you_mean_title")):
        read("/titel")
