"""The table of metadata keys: complete, without a key in two places, and each value is used, neutral or refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from each import each
from gguf.constants import Keys

from localspec.errors import LocalspecError
from localspec.families import table as table_of_families
from localspec.weights import gguf_metadata as table
from localspec.weights.gguf_config import config, generation_config, ignored_sampling
from localspec.weights.gguf_metadata import Metadata, check
from localspec.weights.gguf_tokens import impossible_roles

FAMILIES = ["llama", "qwen2", "qwen3", "phi3"]
SAID: dict[str, Any] = {
    "context_length": 4096, "embedding_length": 256, "feed_forward_length": 512, "block_count": 3,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 64, "rope.freq_base": 500000.0,
}  # fmt: skip
SHAPES = {"token_embd.weight": (1000, 256)}
ODD = [0, -1, 3, 2**32 - 1, 2**70, 0.0, -0.5, 1e30, float("nan"), float("inf"), True, "", "linear", "silu",
       np.array([0, 1]), np.array([float("nan")]), np.array([])]  # fmt: skip

# Keys outside of architectures that localspec uses.
USED_ELSEWHERE = (
    "general.architecture", "general.alignment", "general.name", "general.basename", "general.license",
    "general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p", "general.sampling.min_p",
    "split.count", "split.tensors.count",
    "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template",
)  # fmt: skip
_CARD = "it describes the model to people"
_OTHER_KIND = "llama.cpp uses it for other kinds of tokenizers"
_FILL = "a prompt that fills in the middle spells these marks"
# Keys that are ignored, and the reason. A name that ends in "." stands for all keys that begin with it.
NEUTRAL_ELSEWHERE: dict[str, str] = {
    "general.type": "the tensors show whether it is a model",
    "general.quantization_version": "each tensor names its type",
    "general.file_type": "each tensor names its type",
    **dict.fromkeys(
        (
            "general.author",
            "general.version",
            "general.organization",
            "general.finetune",
            "general.description",
            "general.quantized_by",
            "general.size_label",
            "general.license.name",
            "general.license.link",
            "general.url",
            "general.doi",
            "general.uuid",
            "general.repo_url",
            "general.source.",
            "general.base_model.",
            "general.dataset.",
            "general.tags",
            "general.languages",
            "general.datasets",
        ),
        _CARD,
    ),
    "general.sampling.sequence": "the samplers of localspec have a fixed order",
    "general.sampling.xtc_threshold": "xtc_probability turns XTC on or off",
    "general.sampling.penalty_last_n": "penalty_repeat turns the penalty on or off",
    "general.sampling.mirostat_tau": "mirostat turns Mirostat on or off",
    "general.sampling.mirostat_eta": "mirostat turns Mirostat on or off",
    "general.tensor_extra.": "it describes how tensors were made",
    "split.no": "the name of a file says which part it is",
    "tokenizer.chat_templates": "it lists the names of further templates",
    "tokenizer.chat_template.": "further templates are for tools, and only the first one is used",
    "tokenizer.ggml.added_tokens": "the types of tokens show which were added",
    "tokenizer.ggml.token_type_count": _OTHER_KIND,
    "tokenizer.ggml.cls_token_id": _OTHER_KIND,
    "tokenizer.ggml.mask_token_id": _OTHER_KIND,
    "tokenizer.ggml.seperator_token_id": _OTHER_KIND,
    "tokenizer.ggml.separator_token_id": _OTHER_KIND,
    "tokenizer.ggml.add_sep_token": _OTHER_KIND,
    "tokenizer.ggml.remove_extra_whitespaces": _OTHER_KIND,
    "tokenizer.ggml.precompiled_charsmap": _OTHER_KIND,
    "tokenizer.ggml.normalizer.lowercase": _OTHER_KIND,
    "tokenizer.ggml.normalizer.strip_accents": _OTHER_KIND,
    "tokenizer.ggml.suppress_tokens": "llama.cpp offers the list to programs, but no program of llama.cpp uses it",
    "tokenizer.huggingface.json": "the keys of tokenizer.ggml say the same",
    "tokenizer.rwkv.world": _OTHER_KIND,
    "tokenizer.ggml.fim_pre_token_id": _FILL,
    "tokenizer.ggml.fim_suf_token_id": _FILL,
    "tokenizer.ggml.fim_mid_token_id": _FILL,
    "tokenizer.ggml.prefix_token_id": _FILL,
    "tokenizer.ggml.suffix_token_id": _FILL,
    "tokenizer.ggml.middle_token_id": _FILL,
}


def keys(of: type = Keys) -> Iterator[str]:
    """Yield every key in the list of the package `gguf`, which the converters of llama.cpp use."""
    for name, one in vars(of).items():
        if isinstance(one, type):
            yield from keys(one)
        elif isinstance(one, str) and not name.startswith("_"):
            yield one


def metadata(named: str, changes: dict[str, Any]) -> Metadata:
    said = {key: one for key, one in {**SAID, **changes}.items() if one is not None}
    return Metadata({"general.architecture": named, **{f"{named}.{key}": one for key, one in said.items()}}, "a.gguf")


def test_every_key_of_the_converters_is_in_the_table():
    tables: list[Any] = [table.USED, table.NEUTRAL, table.OFF, table.SAME]
    of_architectures = {key.removeprefix("{arch}.") for key in keys() if key.startswith("{arch}.")}
    of_architectures -= {"{dense}_feat_in", "{dense}_feat_out"}  # dense_2 and dense_3
    assert len(of_architectures) > 100
    for key in sorted(of_architectures):
        assert sum(key in one for one in tables) == 1, key
    others = [key for key in keys() if key.partition(".")[0] in ("general", "tokenizer", "split")]
    assert len(others) > 80
    for key in others:
        found = [key in USED_ELSEWHERE, key in table.TASTE, key in NEUTRAL_ELSEWHERE]
        found += [one.endswith(".") and key.startswith(one) for one in NEUTRAL_ELSEWHERE]
        assert sum(found) == 1, key


def test_no_key_is_in_two_tables():
    names = [*table.USED, *table.NEUTRAL, *table.OFF, *table.SAME]
    assert len(names) == len({*names})
    assert {*table.OFF_WITH_EXPERTS} < {*table.NEUTRAL}
    names = [*USED_ELSEWHERE, *table.TASTE, *NEUTRAL_ELSEWHERE]
    assert len(names) == len({*names})


@each("value, what", [(8.0, "it must be an integer, not a float"), (8.5, "that value is impossible")])
def test_a_float_in_the_place_of_an_integer_is_called_so(value, what):
    own = table_of_families.OF_GGUF["qwen3moe"].gguf.keys
    with pytest.raises(LocalspecError, match=f"sets qwen3moe.expert_count = {value:g}: {what}; fetch it again"):
        check(metadata("qwen3moe", {"expert_count": value}), "qwen3moe", own)


@each("named", ["qwen3moe", "qwen35moe", "gpt-oss", "gemma4"])
@each(
    "key, usual, other",
    [
        ("expert_weights_scale", 1.0, 2.5), ("expert_weights_norm", True, False), ("expert_gating_func", 3, 2),
        ("expert_group_count", 1, 4), ("router_logit_softcapping", 0.0, 30.0),
    ],
)  # fmt: skip
def test_another_router_is_refused_in_files_with_experts(named, key, usual, other):
    own, experts = table_of_families.OF_GGUF[named].gguf.keys, {"expert_count": 8, "expert_used_count": 2}
    check(metadata(named, {**experts, key: usual}), named, own)
    with pytest.raises(LocalspecError, match=f"sets {named}.{key} = .*: localspec cannot compute that"):
        check(metadata(named, {**experts, key: other}), named, own)
    check(metadata("llama", {"expert_count": 0, key: other}), "llama")


@each("named", FAMILIES)
def test_a_usual_file_passes(named):
    check(metadata(named, {}), named)
    check(metadata(named, {name: off[0] for name, off in table.OFF.items() if off}), named)
    check(metadata(named, dict.fromkeys(table.NEUTRAL, "anything")), named)
    check(metadata(named, {name: SAID.get(other) for name, other in table.SAME.items()}), named)
    assert config(metadata(named, {}), SHAPES, lambda _: [])["hidden_size"] == 256


@pytest.mark.slow
@each("name", [*table.USED, *table.OFF, *table.SAME, "unheard.of"])
def test_other_values_are_refused_by_the_name_of_the_key(name):
    refused = 0
    for value in ODD:
        several = value.tolist() if isinstance(value, np.ndarray) else [value]
        possible = table.USED.get(name) or table.OFF.get(name, ()).__contains__
        if several and all(map(possible, several)):
            check(metadata("llama", {name: value}), "llama")
            continue
        refused += 1
        with pytest.raises(LocalspecError) as error:
            check(metadata("llama", {name: value}), "llama")
        assert (
            f"llama.{name} = " in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)
        )
    assert refused >= 8
    with pytest.raises(LocalspecError):
        check(metadata("llama", {name: float("nan")}), "llama")


def test_a_key_of_several_lines_is_one_line_in_a_sentence():
    with pytest.raises(LocalspecError, match=r"^[^\n]*$") as error:
        check(metadata("llama", {"a\nb\udcff": 1}), "llama")
    assert str(error.value).isprintable()
    (sentence,) = impossible_roles(Metadata({"tokenizer.ggml.a\nb_token_id": 5}), 3)
    assert "\n" not in sentence


@each("named", table_of_families.OF_GGUF)
def test_what_a_family_says_in_its_own_way_is_read_or_refused_whatever_it_is(named):
    form = table_of_families.OF_GGUF[named].gguf
    usual = {"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4,
             "ssm.inner_size": 128, "attention.sliding_window_pattern": np.array([True, True, False]),
             "attention.key_length_swa": 32, "expert_count": 8, "expert_used_count": 2,
             "expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 64}  # fmt: skip
    usual = {name: one for name, one in usual.items() if name in form.keys}
    assert config(metadata(named, usual), SHAPES, lambda _: [1.0])["num_hidden_layers"] == 3
    read = 0
    for name in {*form.keys, *form.left_to_config, "block_count", "attention.head_count", "feed_forward_length"}:
        for value in [*ODD, None, 2, 1.5, False, np.array([1, 2, 3]), np.array([True, False])]:
            try:
                config(metadata(named, {**usual, name: value}), SHAPES, lambda _: [1.0, float("nan")])
                read += 1
            except (ValueError, LocalspecError):
                pass
    assert read >= 2


CHANGED: dict[str, Any] = {
    "context_length": 8192, "embedding_length": 512, "feed_forward_length": 1024, "block_count": 4,
    "attention.head_count": 8, "attention.head_count_kv": 4, "attention.key_length": 128, "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 16, "rope.dimension_count": 32,
    "rope.freq_base": 10000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scale_linear": 2.0,
    "rope.scaling.attn_factor": 1.5, "rope.scaling.original_context_length": 2048, "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scaling.yarn_attn_factor": 0.5, "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
    "rope.scaling.yarn_log_multiplier": 0.1, "tensor_data_layout": "jploski",
}  # fmt: skip
WITH_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}


@each("named", FAMILIES)
@each("name", table.USED)
def test_what_is_used_changes_the_model_or_is_refused(named, name):
    base = WITH_YARN if "yarn" in name or "original" in name else {"rope.scaling.factor": 4.0} if "type" in name else {}
    usual = config(metadata(named, base), SHAPES, lambda _: [])
    try:
        found = config(metadata(named, {**base, name: CHANGED[name]}), SHAPES, lambda _: [])
    except (LocalspecError, ValueError):
        return
    assert found != usual


@each(
    "name",
    [
        "embedding_length",
        "block_count",
        "attention.head_count",
        "feed_forward_length",
        "context_length",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_what_is_needed_and_missing_is_named(name):
    with pytest.raises(ValueError, match="the file has no value for"):
        config(metadata("qwen3", {name: None}), SHAPES, lambda _: [])


def test_factors_of_channels_are_multiplied_by_those_of_positions():
    shapes = {**SHAPES, "rope_freqs.weight": (32,)}
    said = metadata("llama", {"rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.25})
    rope = config(said, shapes, lambda _: [1.0, 2.0] * 16)["rope_parameters"]
    assert (rope["short_factor"], rope["long_factor"]) == ([4.0, 8.0] * 16, [4.0, 8.0] * 16)
    assert rope["attention_factor"] == 1.25
    off = config(
        metadata("llama", {"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}), shapes, lambda _: [1.0] * 32
    )
    assert off["rope_parameters"]["short_factor"] == [1.0] * 32
    with pytest.raises(LocalspecError, match="both by YaRN and by the tensor rope_freqs.weight"):
        config(metadata("llama", WITH_YARN), shapes, lambda _: [1.0] * 32)
    with pytest.raises(ValueError, match="rope_factors_long.weight' but not 'rope_factors_short.weight"):
        config(metadata("phi3", {}), {**SHAPES, "rope_factors_long.weight": (32,)}, lambda _: [1.0] * 32)


SAMPLING = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.1}
OURS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


@each("name", SAMPLING)
def test_a_sampling_that_cannot_be_is_left_out_with_a_notice(name):
    said: dict[str, Any] = {f"general.sampling.{one}": value for one, value in SAMPLING.items()}
    said["tokenizer.ggml.eos_token_id"] = 2
    assert ignored_sampling(Metadata(said)) == []
    for wrong in (-0.5, 1e30, float("nan"), float("inf"), "0.5", True, np.array([1.0])):
        changed = Metadata({**said, f"general.sampling.{name}": wrong})
        (sentence,) = ignored_sampling(changed)
        assert sentence.startswith(f"general.sampling.{name} = ") and sentence.endswith(".")
        found = generation_config(changed)
        assert found == {"eos_token_id": [2], **{OURS[one]: SAMPLING[one] for one in SAMPLING if one != name}}


def test_a_negative_top_k_is_off_and_a_sampler_that_is_missing_here_is_named():
    said: dict[str, Any] = {"general.sampling.top_k": -1, "general.sampling.penalty_repeat": 1.0,
                            "general.sampling.mirostat": 0, "general.sampling.xtc_probability": 0.0}  # fmt: skip
    assert generation_config(Metadata(said))["top_k"] == 0 and ignored_sampling(Metadata(said)) == []
    for key, value in {"penalty_repeat": 1.1, "mirostat": 2, "xtc_probability": 0.5}.items():
        (sentence,) = ignored_sampling(Metadata({**said, f"general.sampling.{key}": value}))
        assert f"general.sampling.{key} = {value}" in sentence


def test_arrays_are_compared_with_single_values():
    many, swa = "attention.key_length", "attention.key_length_swa"
    for lengths, other in (([64, 64, 64], 32), ([64, 32, 64], 32), ([64, 32, 64], [64, 64, 32])):
        with pytest.raises(LocalspecError, match=swa):
            check(metadata("llama", {many: np.array(lengths), swa: np.array(other) if other != 32 else other}), "llama")
    check(metadata("llama", {many: np.array([64, 64, 64]), swa: 64}), "llama")
    check(metadata("llama", {many: np.array([64, 32, 64]), swa: np.array([64, 32, 64])}), "llama")
    mirostat = Metadata({"general.architecture": "llama", "general.sampling.mirostat": np.array([2, 2])}, "a.gguf")
    assert len(table.left_out(mirostat)) == 1
