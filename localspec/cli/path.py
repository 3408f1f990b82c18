"""`localspec path`: prints where localspec keeps its files."""

import json
from typing import Annotated

import typer

from localspec.environment import home
from localspec.paths import Paths
from localspec.text import one_line

app = typer.Typer()


@app.command()
def path(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """Show where every file is, or will be; the four directories first."""
    paths = Paths(home())
    places = {
        "config_dir": paths.config_dir,
        "data_dir": paths.data_dir,
        "state_dir": paths.state_dir,
        "cache_dir": paths.cache_dir,
        "config": paths.config_file,
        "models": paths.user_models_file,
        "database": paths.database,
        "choice": paths.choice,
        "former_names": paths.former_names,
        "copied": paths.copied,
        "drafters": paths.drafters,
        "answers": paths.answers,
        "pulled": paths.pulled,
        "imports": paths.imports,
        "packed": paths.packed,
        "tokenizers": paths.tokenizers,
        "kernels": paths.kernels,
        "last_notice": paths.last_notice,
        "logs": paths.logs,
        "socket": paths.socket,
        "key": paths.serving_key,
    }
    if as_json:
        print(json.dumps({name: str(place) for name, place in places.items()}, indent=2))
        return
    names = max(map(len, places))
    for name, place in places.items():
        print(f"{name:{names}} {one_line(str(place))}")
