"""`localspec doctor`: says what this machine can run, and how fast."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec import config, environment
from localspec.bench.proof import prove
from localspec.choosing.cost import bandwidth_of
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.choosing.plans import expert_words
from localspec.choosing.survey import Recommendation, all_pairs, mixture_words, preferred, recommendations
from localspec.cli.console import Progress, folded, print_json, table, window
from localspec.cli.options import refuse_rule_without_effect, takes_settings, whole_number
from localspec.config import NAMES, Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.machine import compiled, hardware
from localspec.machine.machine import Device, Machine, this_machine, torch_trouble
from localspec.marks import drawable
from localspec.paths import Paths
from localspec.quantities import counted, expected_pace, m_words, size, speedup, tokens_a_second
from localspec.store.store import user_store
from localspec.text import one_line
from localspec.weights.packed_files import (
    FoundModel,
    imports,
    models_of_others,
    packed_bytes,
    packed_files,
    remove_abandoned,
)

if TYPE_CHECKING:
    from localspec.serving.server import Server

MOST_FOUND = 5  # models of other programs that the page lists
BUSY = 0.25  # cores that other programs may use without a notice

app = typer.Typer()


@app.command()
@takes_settings("drafter", "draft_max", "drafter_rule", "device", "dtype", "quantize", "context", "prefer")
def doctor(
    *,
    model: Annotated[
        str | None,
        typer.Option("--prove", metavar="MODEL", help="Show that speculation changes no token of this model here."),
    ] = None,
    limit: Annotated[
        int | None, whole_number("--limit", help="With --prove: number of prompts; by default 20.")
    ] = None,
    max_tokens: Annotated[
        int | None, whole_number("--max-tokens", "-n", help="With --prove: tokens of each reply; by default 64.")
    ] = None,
    settings: Settings,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Show which server answers at this address.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show cost-effectiveness M and the reasons.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of text.")] = False,
) -> int:
    """Show what this machine has, what fits, and what would be chosen and why.

    --prove MODEL compares replies with and without drafts.
    """
    flags = {name: getattr(settings, name) for name in NAMES if settings.by_flag(name)}
    prefer, rule = flags.pop("prefer", None), flags.pop("drafter_rule", None)
    if server is not None:
        others = {"prove": model, "limit": limit, "max_tokens": max_tokens, "prefer": prefer, **flags}
        others |= {"verbose": verbose or None, "drafter_rule": rule}
        return _tell_server(server, {name: value for name, value in others.items() if value is not None}, as_json)
    if model is not None:
        if prefer is not None:
            raise UsageMistake(f"--prefer {prefer} has no effect with --prove; leave one of them out.")
        if verbose:
            raise UsageMistake("--verbose has no effect with --prove; leave one of them out.")
        refuse_rule_without_effect(settings)
        return _prove(model, replace(settings, exact=True), limit or 20, max_tokens or 64, as_json)
    for name, value in {"limit": limit, "max_tokens": max_tokens, **flags}.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise UsageMistake(
                f"{flag} {value} has no effect without --prove MODEL; add --prove MODEL, or leave {flag} out."
            )
    if verbose and as_json:
        raise UsageMistake("--verbose has no effect with --json, which prints everything; leave it out.")
    survey = _survey(settings)
    if as_json:
        print_json(_report(survey))
    else:
        columns, height = window(sys.stdout)
        lines = [part for line in _page(survey, verbose, columns) for part in folded(one_line(line), columns)]
        if height is not None and len(lines) >= height:  # its first part would scroll away
            lines += ["", *lines[: lines.index("")]]
        print(drawable("\n".join(lines), sys.stdout))
    return 0


def _prove(model: str, settings: Settings, prompts: int, max_tokens: int, as_json: bool) -> int:
    with Progress() as progress:
        proof = prove(model, settings, prompts, max_tokens, progress.reporter)
    if as_json:
        print_json(asdict(proof))
    if proof.divergence is not None:
        raise LocalspecError(proof.divergence.sentence(proof.precision))
    if not as_json:
        accepted = f"{proof.accepted} of {proof.drafted} drafted tokens accepted"
        details = f"{proof.precision}; up to {proof.rows} rows per step; {accepted}"
        print(f"✓ {proof.same} of {proof.replies} replies are the same, token for token ({details})")
    return 0


@dataclass(frozen=True)
class _Survey:
    """A survey of this machine, and the models that it could run, the best first."""

    machine: Machine
    recommendations: list[Recommendation]
    chosen: Recommendation | None  # the best model that is here
    recommended: Recommendation | None  # the best of all
    ungated: Recommendation | None  # the best of those that are not gated
    mixture: str  # sentences that say why no better mixture of experts is recommended, or ""
    paths: Paths
    packed: int  # files
    other_models: list[FoundModel]  # of other programs, not imported
    others: float  # cores that other programs used meanwhile


def _survey(settings: Settings) -> _Survey:
    others, paths = hardware.OthersLoad(), Paths(environment.home())
    with Progress() as progress, user_store(progress.notice, create=settings.log) as store:  # saves measurements
        progress.show("checking this machine")
        measurements = Measurements(MeasurementCache(store, progress.reporter), settings.exact, settings.context)
        machine = this_machine(measurements.bandwidth)
        local_pairs = recommendations(machine, measurements, here=True, rule=settings.drafter_rule)
        pairs = recommendations(machine, measurements, here=False, rule=settings.drafter_rule)
    recommended = preferred(pairs, settings.prefer)
    remove_abandoned(paths.packed, paths.imports)
    imported = [packed.header.origin.files for packed in imports(paths).values()]
    keys = {(os.path.basename(name), sum(size for size, _ in files.values())) for files in imported for name in files}
    return _Survey(
        machine,
        all_pairs(local_pairs, pairs),
        preferred(local_pairs, settings.prefer),
        recommended,
        preferred([pair for pair in pairs if not pair.gated], settings.prefer),
        mixture_words(recommended, pairs, settings.prefer) if recommended else "",
        paths,
        len(packed_files(paths)),
        [model for model in models_of_others() if (model.path.name, model.bytes) not in keys],
        others(),
    )


# -- as JSON -----------------------------------------------------------------------------------------------------------


def _report(survey: _Survey) -> dict[str, Any]:
    return {
        "processor": hardware.cpu_name(),
        "cores": survey.machine.cores,
        "capabilities": [*filter(None, [compiled.instruction_set()])],
        "torch_trouble": torch_trouble(),
        "packed": {"path": str(survey.paths.packed), "files": survey.packed, "bytes": packed_bytes(survey.paths)},
        "found": [
            {"name": model.name, "program": model.program, "path": str(model.path), "bytes": model.bytes}
            for model in survey.other_models
        ],
        "devices": [_device(device) for device in survey.machine.devices],
        "choices": [_choice(recommendation) for recommendation in survey.recommendations],
        "chosen": survey.chosen and _choice(survey.chosen),
        "recommended": survey.recommended and _choice(survey.recommended),
        "recommended_open": survey.ungated and _choice(survey.ungated),
        "better_mixture": survey.mixture or None,
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "device": device.name,
        "title": device.title,
        "total_bytes": device.total,
        "free_bytes": device.free,
        "usable_bytes": device.usable,
        "bytes_per_second": device.bandwidth,
        "dtypes": device.dtypes,
        "quantize": ["none", *device.packings],
        "capability": device.capability,
        "engine": device.engine,
        "versions": hardware.versions(device.name),
    }


def _choice(recommendation: Recommendation) -> dict[str, Any]:
    plan = recommendation.plan
    return {
        "model": recommendation.card.name,
        "drafter": recommendation.drafter,
        "quantize": plan and plan.precision.quantize,
        "dtype": plan and plan.precision.dtype,
        "device": plan and plan.precision.device.name,
        "installed": recommendation.card.here and plan is not None and plan.candidate.here,
        "gated": recommendation.gated,
        "fits": recommendation.fits,
        "bytes": plan and plan.bytes,
        "parked_bytes": plan and plan.parked,
        "tokens_per_second": plan and round(plan.speed, 2),
        "M": plan and round(plan.cost_effectiveness, 3),
        "rule": plan and plan.rule,
        "peak_measured": plan is not None and plan.peak_measured,
        "measured": plan is not None and plan.measured,
        "quality": recommendation.quality,
        "reason": recommendation.reason,
        "passed_over": recommendation.passed_over or None,
        "idle": recommendation.idle or None,
    }


# -- as a page ---------------------------------------------------------------------------------------------------------


def _page(survey: _Survey, verbose: bool, width: int | None) -> Iterator[str]:
    yield from _advice(survey)
    yield ""
    yield from _machine(survey)
    yield ""
    yield "Models, by quality; measured while other programs ran:" if _busy(survey) else "Models, by quality:"
    by_quality = sorted(survey.recommendations, key=lambda pair: pair.quality, reverse=True)
    rows = [
        ["MODEL", "FITS", "TOKENS/S", "DRAFTS", "M", "DOWNLOAD", "BY"],  # a narrow terminal leaves out the last ones
        *([pair.card.name + " *" * pair.gated, *_cells(pair)] for pair in by_quality),
    ]
    if not verbose:
        rows = [[*row[:4], *row[5:]] for row in rows]
    last_column = len(rows[0]) - 1  # before BY
    right = {2, 3, 4} if verbose else {2, 3}
    yield from table(rows, right, width, whole=range(last_column), wraps={last_column})
    yield from dict.fromkeys(pair.passed_over for pair in survey.recommendations if pair.passed_over)
    yield ""
    yield "~ marks predictions, the rest is measured. DRAFTS is the speed with drafts against plain decoding."
    if any(pair.gated for pair in survey.recommendations):
        yield "* marks gated models: you must accept their terms at the hub before you can fetch them."
    if verbose:
        yield "M is speedup ÷ relative memory, both against the model's fastest plain decoding that fits."
        for title, pair in (("Chosen from the models here", survey.chosen), ("Recommended", survey.recommended)):
            if pair is not None:
                model = f"{pair.card.name}, gated" if pair.gated else pair.card.name
                yield f"{title}: {model}: {pair.reason}."


def _busy(survey: _Survey) -> bool:
    return survey.others >= BUSY


def _advice(survey: _Survey) -> Iterator[str]:
    """Yield sentences of advice: which model to use, how to start or fetch it, and why a GPU would stay idle."""
    chosen, best = survey.chosen, survey.recommended
    if best is None:
        yield "No registered model fits here."
        return
    if chosen is not None and best.model_and_drafter == chosen.model_and_drafter:
        yield f"Use {best.card.name}, which is here: {_speed(best)}. Start with: localspec chat"
        yield from filter(None, [_sentence_about_experts(best), best.idle, survey.mixture])
        return
    license_ = f", license {best.card.license}" if best.card.license else ""
    yield f"Use {best.card.name}{license_}: {_speed(best)}; {_download(best)} to download."
    yield f"Fetch it with: localspec pull {best.card.name}"
    yield from filter(None, [_sentence_about_experts(best), best.idle, survey.mixture])
    if best.gated:
        yield "The model is gated: accept its terms with an account at the hub; `localspec pull` says where."
        yield "Every model that fits here is gated."
    if chosen is not None:
        yield f"Until the download is complete, {chosen.card.name}, which is here, answers: {_speed(chosen)}."
        yield from filter(None, [chosen.idle])


def _sentence_about_experts(pair: Recommendation) -> str:
    if pair.plan is None or pair.plan.active is None:
        return ""
    facts = expert_words(pair.plan).removeprefix("; ")
    return f"The model is a mixture of experts: {facts}."


def _speed(pair: Recommendation) -> str:
    assert pair.plan is not None
    pace, gain = expected_pace(pair.plan.speed, pair.plan.measured), speedup(pair.speedup or 1.0)
    if pair.drafts and gain == "as fast":
        return f"{pace}; drafts are not expected to help"
    drafter = pair.plan.candidate.name
    speed = f"{pace}, {gain} with {drafter}" if pair.drafts else pace
    return f"{speed}, {m_words(pair.plan.cost_effectiveness, pair.plan.rule)}"


def _machine(survey: _Survey) -> Iterator[str]:
    for device in survey.machine.devices:
        formats = ", ".join((*device.dtypes, *device.packings))
        speed = f"{bandwidth_of(device) / 1e9:.0f} GB/s{'' if device.bandwidth else ', assumed'}"
        cores = f", {survey.machine.cores} cores" if device.type == "cpu" else ""
        yield f"{device.name}: {device.title}{cores}, {device.capability}; computes in {formats}; reads {speed}"
        yield (
            f"{device.name}: memory {_gib(device.total)}, free {_gib(device.free)}, of which a model may take "
            f"{_gib(device.usable)}"
        )
    if (chosen := survey.chosen) is not None and (plan := chosen.plan) is not None:
        yield (
            f"{plan.precision.device.name}: in addition to {chosen.card.name}, caches of earlier conversations may "
            f"take up to {_gib(plan.parked)}"
        )
    if _busy(survey):
        cores = f"{survey.others:.1f} of {survey.machine.cores} cores"
        yield f"Other programs used {cores}; this machine is faster when idle."
        if not all(device.bandwidth for device in survey.machine.devices):
            yield "The speed of the memory is assumed, because other programs would disturb its measurement."
    if trouble := torch_trouble():
        yield trouble
    if survey.packed:
        total, paths = size(packed_bytes(survey.paths)), survey.paths
        yield f"{counted(survey.packed, 'packed model')}, {total}, in {paths.packed} and {paths.imports}"
    for model in survey.other_models[:MOST_FOUND]:
        path = shlex.quote(str(model.path))
        yield f"{model.program} has {model.name}, {size(model.bytes)}. Use it: localspec import {path}"
    if (rest := len(survey.other_models) - MOST_FOUND) > 0:
        yield f"{counted(rest, 'more model')} of other programs can be imported; --json lists all of them."


def _download(pair: Recommendation) -> str:
    needed = pair.to_fetch
    if pair.plan is None and pair.card.here:
        return "unusable"  # its files are missing, damaged or others now, as the reason says
    if needed.bytes is None:
        return "not here"
    if not needed.bytes:
        return "its drafter" if needed.drafter else "here"
    return _gib(needed.bytes) + " + drafter" * needed.drafter


def _cells(pair: Recommendation) -> list[str]:
    """Return the cells of a recommendation's row: FITS, TOKENS/S, DRAFTS, M, DOWNLOAD and BY."""
    plan, download = pair.plan, _download(pair)
    if plan is None:
        return ["?", "", "", "", download, pair.reason]
    needed, tilde = _gib(max(plan.bytes, 2**30 // 10)), "" if plan.measured else "~"
    device = "" if plan.precision.device.name == "cpu" else f" on {plan.precision.device.name}"
    means = f"{plan.candidate.drafter}, {plan.precision}{device}"
    if not pair.fits:
        return [f"no, {needed}", "", "", "", download, means]
    return [
        f"yes, {needed}",
        tilde + tokens_a_second(plan.speed).removesuffix(" tokens/s"),
        f"{tilde}{pair.speedup:.1f}×" if pair.drafts else "",
        f"{tilde}{plan.cost_effectiveness:.2f}",
        download,
        means,
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


# -- a server ----------------------------------------------------------------------------------------------------------


def _tell_server(url: str, others: Mapping[str, object], as_json: bool) -> int:
    """Ask a server for its models, print them, and return the exit code.

    `others` are other flags that the user gave. They have no effect on a server, so they raise UsageMistake. Raises
    also the errors of `Server.open`.
    """
    for name in others:
        flag = "--" + name.replace("_", "-")
        raise UsageMistake(f"{flag} has no effect with --server, which is about another machine; leave {flag} out.")
    address = config.load(flags={"server": url}).elsewhere
    if address is None:
        raise UsageMistake("--server off names no server to check; give an address, or leave --server out.")
    from localspec.serving.server import Server  # opens connections

    server = Server.open(address)
    if as_json:
        models = [{"model": name, "context": model.context or None} for name, model in server.models.items()]
        program = server.program or None
        print_json({"server": server.address.url, "program": program, "models": models, "unread": server.unread})
    else:
        print(drawable("\n".join(map(one_line, _server_page(server))), sys.stdout))
    return 0


def _server_page(server: "Server") -> Iterator[str]:
    if not server.models and not server.unread:
        yield (
            f"{server.address.url} answers but lists no models; a prompt will show whether it speaks OpenAI's protocol."
        )
        yield f"Try it with: localspec run Hi --server {server.address.url} -m NAME"
        return
    program = server.program or "an OpenAI-compatible server"
    yield f"{server.address.url} is {program}, with {counted(len(server.models), 'model')}."
    for name, model in server.models.items():
        yield f"{name}, with a context of {model.context:,} tokens" if model.context else name
    if server.unread:
        yield f"Not listed, because their names cannot be typed here: {counted(server.unread, 'model')}."
    if server.unencrypted_key:
        yield server.unencrypted_key[:1].upper() + server.unencrypted_key[1:]
    if server.models:
        yield f"Chat with it: localspec chat --server {server.address.url} -m {next(iter(server.models))}"
