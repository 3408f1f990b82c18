"""`localspec use [NAME]`: chooses the model that answers without `-m`."""

from typing import Annotated

import typer

from localspec import environment
from localspec.cli.console import say
from localspec.config import load
from localspec.errors import LocalspecError
from localspec.models import registry
from localspec.models.names import full_name
from localspec.models.present import present_model, save_choice
from localspec.paths import Paths
from localspec.text import one_line
from localspec.weights.checkpoint import inspect

app = typer.Typer()


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A model on this machine; a unique prefix of its name is enough."),
    ] = None,
) -> None:
    """Choose the model that answers when you name none; without NAME, show it and why it answers."""
    settings, paths = load(), Paths(environment.home())
    if name is None:
        model, origin = present_model(settings, paths)
        print(
            one_line(
                f"{model} ({origin})" if model else f"No model is chosen: {origin}; choose with `localspec use NAME`."
            )
        )
        return
    card = registry.resolve(full_name(name))
    inspect(card.path)
    try:
        save_choice(registry.reference(card), "use", paths)
    except OSError as error:
        raise LocalspecError(
            f"{paths.choice} cannot be written ({error.strerror}); check the permissions of its folder, then try again."
        ) from None
    print(one_line(f"{card.name} answers from now on when you name no model."))
    if settings.model is not None:
        say(f"{settings.shown('model')} still overrides this choice.")
