"""Every figure for Prometheus has a distinct name and the right value, and each request counts once."""

from dataclasses import replace
from pathlib import Path

from reply_statistics import said
from scripted_models import scripted_model
from serving.conftest import start

from localspec.serving.metrics import Metrics

VALUES = {
    "localspec_prompt_tokens_total": 101,
    "localspec_reused_tokens_total": 37,
    "localspec_completion_tokens_total": 23,
    "localspec_steps_total": 11,
    "localspec_drafted_tokens_total": 59,
    "localspec_accepted_tokens_total": 13,
    "localspec_prefill_seconds_total": 0.25,
    "localspec_decode_seconds_total": 1.75,
}


def values(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_every_figure_of_two_replies_has_its_name_and_value() -> None:
    reply = replace(
        said(range(23), seconds=1.75, steps=11, drafted=59),
        prompt_tokens=101, reused_tokens=37, prefill_seconds=0.25, accepted=13,
    )  # fmt: skip
    metrics = Metrics()
    metrics.loaded = ({}, {}, {})
    for status in (200, 404, 200):
        metrics.answered(status)
    for count in (1, 2):
        metrics.count(reply)
        text = metrics.text(waiting=5)
        assert values(text) == {
            'localspec_requests_total{status="200"}': 2,
            'localspec_requests_total{status="404"}': 1,
            **{name: count * value for name, value in VALUES.items()},
            "localspec_waiting_requests": 5,
            "localspec_loaded_models": 3,
        }
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert kinds == {
        **dict.fromkeys(["localspec_requests_total", *VALUES], "counter"),
        **dict.fromkeys(["localspec_waiting_requests", "localspec_loaded_models"], "gauge"),
    }
    helps = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert helps == kinds.keys()


def test_each_request_counts_once_and_figures_are_those_of_its_reply(tmp_path: Path) -> None:
    model = scripted_model(tmp_path / "model", [b"a", b"b"], again=0, context=1000).path
    server = start(tmp_path, "-m", str(model))
    try:
        usage = server.chat("Hi", max_tokens=7, temperature=0).json["usage"]
        server.chat("Hi", max_tokens=5, temperature=0, stream=True)
        assert server.chat("Hi", max_tokens=0).status == 400
        assert server.ask("/nothing").status == 404
        found = values(server.ask("/metrics").body.decode())
    finally:
        server.stop()
    statuses = {name: count for name, count in found.items() if name.startswith("localspec_requests_total")}
    assert statuses == {f'localspec_requests_total{{status="{at}"}}': n for at, n in ((200, 2), (400, 1), (404, 1))}
    assert found["localspec_prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert found["localspec_completion_tokens_total"] == 7 + 5
    assert found["localspec_decode_seconds_total"] > 0 and found["localspec_loaded_models"] == 1
