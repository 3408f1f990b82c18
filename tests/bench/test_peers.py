from importlib.util import find_spec
from itertools import islice
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from golden import matching

from localspec import Limits
from localspec.bench import llama_cpp, peers
from localspec.errors import LocalspecError, UsageMistake


@pytest.fixture(scope="session")
def engine(tiny):
    """As much of an engine as peers ask for, over a tiny model."""
    model = tiny("llama-one-key-head-tied-linear")
    choice = SimpleNamespace(
        device="cpu", dtype="fp32", quantize="none", target=SimpleNamespace(name="t", path=model.path)
    )
    return SimpleNamespace(target=model.target, choice=choice, stock=model.stock)


def test_a_peer_there_is_not():
    with pytest.raises(UsageMistake, match=r"vllm.*transformers, llama\.cpp"):
        peers.require(["transformers", "vllm"])


def test_a_peer_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "gguf" else "found")
    peers.require(["transformers"])
    with pytest.raises(UsageMistake, match=matching("pip_install_peers")):
        peers.require(["llama.cpp"])


@pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra 'peers'")
def test_a_gpu_is_not_compared_with_a_processor(engine):
    on_gpu = SimpleNamespace(target=engine.target, choice=SimpleNamespace(device="cuda:0"))
    if llama_cpp.library().llama_supports_gpu_offload():
        pytest.skip("llama.cpp is installed with its GPU part")
    with pytest.raises(LocalspecError, match=matching("device_cpu")):
        peers.check(["llama.cpp"], on_gpu, 320)


@pytest.mark.slow
def test_the_stock_model_says_what_it_says_anywhere(engine):
    peer = peers.Transformers(engine, Limits(8))
    prompt = tiny_models.prompt_ids(20)
    assert list(islice(peer.greedy(prompt), 8)) == tiny_models.stock_reply(engine.stock, prompt, 8, stops=())
    assert peer.name == "transformers fp32" and peer.model.config._attn_implementation == "sdpa"
    assert peer.tokens_per_second("hello") > 0


def test_int8_is_compared_with_bf16(engine):
    int8 = SimpleNamespace(target=engine.target, choice=SimpleNamespace(**{**vars(engine.choice), "quantize": "int8"}))
    peer = peers.Transformers(int8, Limits(8))
    assert peer.name == "transformers bf16" and peer.model.dtype == torch.bfloat16
    assert (
        peers.Ours(int8, Limits(8)).name == "localspec int8" and peers.Ours(engine, Limits(8)).name == "localspec fp32"
    )


def watched(monkeypatch, owner, name: str, note):
    """What `note` says of every call of a method, which works as before."""
    seen, method = [], getattr(owner, name)

    def watch(*arguments, **options):
        seen.append(note(*arguments))
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, watch)
    return seen


def test_timed_forwards_have_256_tokens_behind_them(engine, monkeypatch):
    stock, ours = peers.Transformers(engine, Limits(8)), peers.Ours(engine, Limits(8))
    theirs = watched(monkeypatch, stock, "logits", lambda tokens, cache, *_: (len(tokens), cache.get_seq_length()))
    here = watched(monkeypatch, engine.target, "forward", lambda tree, cache: (tree.size, cache.length))
    for rows in (8, 1, 64):
        stock.forward(rows)
        ours.forward(rows)
    assert theirs == [(256, 0), (8, 256), (1, 256), (64, 256)]
    assert here == [(8, 256), (1, 256), (64, 256)]


class Scripted(peers.Peer):
    """Says what it is told to, half a second a token."""

    clock = 0.0

    def greedy(self, prompt):
        for token in self.says:
            Scripted.clock += 0.5
            yield token


@pytest.mark.parametrize(
    ("says", "limit", "speed"),
    [
        ([1, 2, 3, 4, 5], 5, 2.0),  # four tokens in two seconds: the first belongs to the prompt
        ([1, 2, 3, 4, 5], 3, 2.0),
        ([1, 2, 3, 9, 5], 5, 4 / 3),  # the end costs a step and is no token
        ([1, 2], 1, 0.0),
        ([1, 9], 5, 0.0),
        ([9, 1], 5, 0.0),
    ],
)
def test_tokens_per_second_are_counted_as_ours_are(monkeypatch, says, limit, speed):
    monkeypatch.setattr(peers.time, "perf_counter", lambda: Scripted.clock)
    target = SimpleNamespace(stop_tokens={9}, encode=lambda _: [0], config=SimpleNamespace(vocab_size=10), context=100)
    peer = Scripted(SimpleNamespace(target=target), Limits(limit))
    peer.says = says
    assert peer.tokens_per_second("hello") == pytest.approx(speed)


@pytest.mark.skipif(not (find_spec("llama_cpp") and find_spec("gguf")), reason="needs the extra 'peers'")
@pytest.mark.slow
def test_llama_cpp_in_both_precisions(engine, monkeypatch):
    with peers.opened(["llama.cpp", "transformers"], engine, Limits(8), 640) as opened:
        assert [peer.name for peer in opened] == ["transformers fp32", "llama.cpp f16", "llama.cpp q8_0"]
        peer = opened[1]
        prompt = tiny_models.prompt_ids(600)  # longer than it reads at once
        expected = tiny_models.stock_logits(engine.stock, prompt).argmax(-1).tolist()
        assert next(peer.greedy(prompt)) == expected[-1]
        seen = watched(monkeypatch, peer, "logits", lambda tokens, start, *_: (len(tokens), start))
        peer.forward(8)
        peer.forward(64)
        assert peer.tokens_per_second("hello") > 0
        asked = len(seen)
        peer.forward(1)
        assert seen[:3] == [(256, 0), (8, 256), (64, 256)] and seen[asked:] == [(256, 0), (1, 256)]
