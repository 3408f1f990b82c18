"""`localspec distill`: writes replies of a model as text to train drafters on."""

import os
from pathlib import Path
from typing import Annotated

import typer

from localspec.chat.start import chosen_model
from localspec.cli.console import Progress
from localspec.cli.interrupt import Interrupt
from localspec.cli.options import takes_settings, whole_number
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.quantities import duration
from localspec.store.store import user_store
from localspec.training.examples import read_questions

app = typer.Typer()


@app.command()
@takes_settings(
    "model", "temperature", "seed", "device", "dtype", "quantize",
    temperature="0, the default, is greedy.",
    seed="The same seed gives the same replies.",
)  # fmt: skip
def distill(
    *,
    settings: Settings,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSONL with {"prompt": "…"}, {"turns": ["…", …]} or {"messages": […]}, or one prompt per line; '
            "also .xz.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="JSONL; replies already in it are kept.")
    ] = None,
    max_tokens: Annotated[int, whole_number("--max-tokens", "-n", help="The longest reply, in tokens.")] = 512,
    batch: Annotated[
        int | None,
        whole_number(help="Prompts at once; by default 16 on a GPU and 1 on a CPU."),
    ] = None,
    limit: Annotated[int | None, whole_number(help="Only the first N prompts.")] = None,
) -> int:
    """Let a model answer prompts, as training data for drafters. Repeat a stopped command to continue it."""
    if prompts is None or output is None:
        raise UsageMistake("Name the prompts and a file for the replies: --prompts FILE -o FILE.")
    if os.path.isdir(output) or not os.path.isdir(output.absolute().parent):
        raise UsageMistake(
            f"{output} cannot be written: it is a directory, or its folder does not exist; choose another -o."
        )
    questions = read_questions(prompts)[:limit]
    with Interrupt() as interrupt, Progress() as progress, user_store(progress.notice, create=False) as store:
        card = chosen_model(settings, store, progress.reporter)
        progress.show(f"loading {card.name}")

        # torch may be needed from here on; importing it takes seconds.
        from localspec.training.answering import GenerationSettings, answerer
        from localspec.training.distill import Distiller

        generation = GenerationSettings(
            max_tokens,
            settings.temperature or 0.0 if settings.by_flag("temperature") else 0.0,
            0 if settings.seed is None else settings.seed,
        )
        distiller = Distiller(questions, output, answerer(card, settings, batch, store, progress.reporter), generation)
        if distiller.too_long:
            progress.notice(f"{distiller.too_long} prompts are too long for the model's context and are left out.")
        if distiller.answered:
            progress.notice(f"{len(distiller.answered)} of {distiller.total} replies already exist.")
        if left := distiller.total - len(distiller.answered):
            progress.show("measuring")
            progress.notice(f"{left} replies take about {duration(distiller.estimate())} at most.")
        interrupt.wait_for_step = True
        for batch_done in distiller.run():
            progress.show(f"{batch_done.done} of {batch_done.total} replies, {batch_done.left / 3600:.2g} hours left")
            if interrupt.requested and batch_done.done < batch_done.total:
                progress.notice(
                    f"stopped; {output} has {batch_done.done} of {batch_done.total} replies; repeat the command "
                    "to continue."
                )
                return 130
    print(f"{output}: {distiller.total} replies of {card.name}.", flush=True)
    return 0
