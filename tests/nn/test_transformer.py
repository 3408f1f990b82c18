"""One transformer, six families: the numbers are those of the stock model of transformers, on prompts and on trees."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from each import each
from scripted_drafters import path_to, random_tree
from tiny_models import (
    CONFIGS,
    DRAFTING_FAMILIES,
    DYNAMIC,
    FAMILIES,
    LONGROPE,
    MIXTURES,
    SHARDED,
    Tiny,
    by_expert,
    byte_tokenizer,
    prompt_ids,
    stock_logits,
    write,
)
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from localspec.choosing.fit import BUCKET
from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.errors import LocalspecError, UsageMistake
from localspec.families.architecture import weight_map
from localspec.nn.cache import KVCache
from localspec.nn.target import Target, ancestor_mask

# Both sides add the same few hundred fp32 products in another order: 2e-7 to 8e-7 is what that gives here. A wrong
# position, mask, norm or bias moves logits by more than a hundredth of the largest.
TOLERANCE = 1e-5
GROUPED_QWEN3 = "qwen3-grouped-mixed-window-wide-heads"

every_family = each("name", [*FAMILIES, *MIXTURES])
OTHERS = [name for name in CONFIGS if name not in FAMILIES[:2]]


# A chain of twelve after a branch of four: each ancestor is four slots away from where its position says.
DEEP = DraftTree([77, *prompt_ids(16, seed=14)], [-1, 0, 1, 2, 3, 0, *range(5, 16)])


def causal(rows: int) -> torch.Tensor:
    return torch.ones(rows, rows, dtype=torch.bool).tril()


def apart(ours: torch.Tensor, stock: torch.Tensor) -> float:
    """Return the largest difference, in parts of the largest number of the stock model."""
    return float((ours - stock).abs().max() / stock.abs().max())


def prefill(target: Target, cache: KVCache, tokens: list[int]) -> torch.Tensor:
    start = cache.length
    output = target.forward_tensors(
        torch.tensor(tokens), torch.arange(start, start + len(tokens)), causal(len(tokens)), cache
    )
    cache.keep(range(len(tokens)))
    return output.logits


def assert_reads_a_prompt(model: Tiny) -> None:
    tokens = prompt_ids(60)
    with torch.no_grad():
        output = model.target.forward_tensors(torch.tensor(tokens), torch.arange(60), causal(60))
        hidden = model.stock.model(torch.tensor([tokens])).last_hidden_state[0]
    assert apart(output.logits, stock_logits(model.stock, tokens)) < TOLERANCE
    assert apart(output.hidden, hidden) < TOLERANCE


@each("name", [*FAMILIES, *MIXTURES])
def test_logits_and_hidden_states_of_a_prompt_are_the_stock_models(tiny, name):
    assert_reads_a_prompt(tiny(name))


@pytest.mark.slow
@each("name", OTHERS)
def test_every_switch_of_a_family_gives_the_stock_models_logits(tiny, name):
    """A prompt, and a window that ends inside a tree, which counts positions and not slots."""
    assert_reads_a_prompt(tiny(name))
    assert_rows_are_paths(tiny(name), prompt_ids(5, seed=2), DEEP)


@pytest.mark.slow
@every_family
def test_a_prompt_read_in_chunks_through_the_cache_gives_the_same_logits(tiny, name):
    model, tokens = tiny(name), prompt_ids(62, seed=1)
    cache = model.target.cache(0)
    cache.reserve(62)
    with torch.inference_mode():
        rows = [prefill(model.target, cache, tokens[a:b]) for a, b in ((0, 7), (7, 8), (8, 40), (40, 41), (41, 62))]
    assert cache.length == 62
    assert apart(torch.cat(rows), stock_logits(model.stock, tokens)) < TOLERANCE


@pytest.mark.slow
@every_family
@each("committed, deep", [(0, 0.5), (33, 0.9)])
def test_each_node_of_a_tree_gets_the_logits_of_its_own_path_as_plain_text(tiny, name, committed, deep):
    tree = random_tree(root=77, nodes=15, seed=committed, deep=deep)
    assert tree.parents != list(range(-1, 15)), "the tree branches"
    assert_rows_are_paths(tiny(name), prompt_ids(committed, seed=2), tree)


@pytest.mark.slow
@each("name", FAMILIES[:2])
def test_a_window_that_ends_inside_a_tree_counts_positions_and_not_slots(tiny, name):
    assert max(DEEP.depth) == 12, "deeper than windows of 6 to 9"
    assert_rows_are_paths(tiny(name), prompt_ids(5, seed=2), DEEP)


def assert_rows_are_paths(model: Tiny, prompt: list[int], tree: DraftTree) -> None:
    committed = len(prompt)
    cache = model.target.cache(committed + tree.size)
    with torch.inference_mode():
        if prompt:
            prefill(model.target, cache, prompt)
        ours = model.target.forward(tree, cache)
    for node in range(tree.size):
        text = prompt + [tree.tokens[at] for at in path_to(tree, node)]
        assert apart(ours.logits.rows[node], stock_logits(model.stock, text)[-1]) < TOLERANCE, f"node {node}"


@pytest.mark.slow
@every_family
def test_the_next_forward_sees_only_the_kept_path_of_a_tree(tiny, name):
    model, prompt = tiny(name), prompt_ids(20, seed=3)
    tree = random_tree(root=88, nodes=12, seed=5)
    deepest = max(range(tree.size), key=lambda node: (tree.depth[node], node))
    path = path_to(tree, deepest)
    assert path != list(range(len(path))), "rows have to move"
    cache = model.target.cache(60)
    with torch.inference_mode():
        prefill(model.target, cache, prompt)
        model.target.forward(tree, cache)
        cache.keep(path)
        ours = prefill(model.target, cache, [5, 6, 7])
    text = [*prompt, *(tree.tokens[node] for node in path), 5, 6, 7]
    assert apart(ours, stock_logits(model.stock, text)[-3:]) < TOLERANCE


def test_with_last_only_the_last_rows_logits_are_computed(tiny):
    model, tokens = tiny(SHARDED), torch.tensor(prompt_ids(30))
    with torch.no_grad():
        whole = model.target.forward_tensors(tokens, torch.arange(30), causal(30))
        last = model.target.forward_tensors(tokens, torch.arange(30), causal(30), last=True)
    assert last.logits.shape == (1, model.target.transformer.config.vocab_size)
    # One row goes through another matrix routine than thirty do.
    assert apart(last.logits[0], whole.logits[-1]) < TOLERANCE
    assert torch.equal(last.hidden, whole.hidden)


@pytest.mark.slow
@each("name", DRAFTING_FAMILIES)
def test_a_subset_of_layers_computes_what_the_stock_model_of_those_layers_does(tiny, name):
    model, tokens = tiny(name), prompt_ids(26, seed=4)
    stock = copy.deepcopy(model.stock)
    stock.model.layers = torch.nn.ModuleList([stock.model.layers[0], stock.model.layers[2]])
    stock.model.config.num_hidden_layers = 2
    if kinds := getattr(stock.model.config, "layer_types", None):
        stock.model.config.layer_types = [kinds[0], kinds[2]]
    with torch.no_grad():
        ours = model.target.forward_tensors(torch.tensor(tokens), torch.arange(26), causal(26), layers=(0, 2)).logits
    assert apart(ours, stock_logits(stock, tokens)) < TOLERANCE


def test_a_subset_of_layers_writes_its_own_slots_of_the_cache_and_no_others(tiny):
    model, tokens = tiny("qwen3-grouped-mixed-window-wide-heads"), prompt_ids(20, seed=6)
    with torch.inference_mode():
        cache = model.target.cache(40)
        prefill(model.target, cache, tokens[:15])
        model.target.forward_tensors(torch.tensor(tokens[15:]), torch.arange(15, 20), causal(5), cache, layers=(0, 2))
        slots = cache._slots[0][:, :, :, 15:20]
        assert all(slots[layer].any() for layer in (0, 2))
        assert not slots[1].any()
        # Drafting with some layers leaves nothing behind that a verification with all of them would see.
        ours = prefill(model.target, cache, tokens[15:])
    assert apart(ours, stock_logits(model.stock, tokens)[15:]) < TOLERANCE


@pytest.mark.slow
@every_family
def test_logits_and_gradients_of_a_batch_without_a_cache_are_the_stock_models(tiny, name):
    model = tiny(name)
    target, stock = Target.load(model.path), copy.deepcopy(model.stock)
    tokens = torch.tensor([prompt_ids(18, seed=seed) for seed in (7, 8)])
    direction = torch.randn(2, 18, 320, generator=torch.Generator().manual_seed(0))
    target.transformer.requires_grad_(True)
    logits, expected = target.forward_tensors(tokens, torch.arange(18), causal(18)).logits, stock(tokens).logits
    assert apart(logits.detach(), expected.detach()) < TOLERANCE
    (logits * direction).sum().backward()
    (expected * direction).sum().backward()
    theirs = by_expert({part: parameter.grad for part, parameter in stock.named_parameters()})
    ours = dict(target.transformer.named_parameters())
    for part, made_of in weight_map(target.transformer.config).items():
        if part.endswith("layer_scalar"):  # which the stock model does not train
            continue
        expected = torch.cat([theirs[piece] for piece, _ in made_of])
        assert expected.abs().max() > 0
        # Sums over many more terms than a logit, hence wider; a missing path would be off by a tenth and more.
        assert apart(ours[part].grad, expected) < 1e-4, part


@pytest.mark.slow
@every_family
def test_what_is_saved_is_read_by_the_stock_model_bit_for_bit(tiny, name, tmp_path):
    model = tiny(name)
    model.target.save(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    before, after = model.stock.state_dict(), again.state_dict()
    assert type(again) is type(model.stock)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[part], after[part]) for part in before)
    ours = Target.load(tmp_path / "again")
    assert ours.transformer.config == model.target.transformer.config
    assert ours.stop_tokens == model.target.stop_tokens


def test_the_mask_of_random_trees_is_that_of_their_paths():
    for seed in range(50):
        tree = random_tree(1, nodes=seed % 20, seed=seed)
        mask = ancestor_mask(tree.parents)
        for node in range(tree.size):
            assert mask[node].nonzero().flatten().tolist() == path_to(tree, node)


# -- rows that are filled up -------------------------------------------------------------------------------------------


def filled(target: Target, multiple: int) -> Target:
    target = copy.copy(target)
    target.row_multiple = multiple
    return target


@pytest.mark.slow
@each("name, exact, multiple", [(SHARDED, False, 4), (GROUPED_QWEN3, True, 8), (GROUPED_QWEN3, False, 4)])
def test_rows_that_fill_up_a_forward_do_not_change_the_others(tiny, name, exact, multiple):
    plain, prompt = Target.load(tiny(name).path, exact=exact), prompt_ids(21, seed=5)
    widths: list[int] = []
    padded, transform = filled(plain, multiple), plain.transformer.forward

    def watched(tokens: torch.Tensor, *more: object, **named: object) -> torch.Tensor:
        widths.append(tokens.shape[1])
        return transform(tokens, *more, **named)

    padded.transformer = copy.copy(plain.transformer)
    padded.transformer.forward = watched
    for nodes in (0, 1, 2, 3, 6, 7, 8):
        tree = random_tree(root=88, nodes=nodes, seed=nodes)
        outputs, slots = [], []
        for target in (plain, padded):
            cache = target.cache(21 + tree.size)
            with torch.inference_mode():
                prefill(target, cache, prompt)
                output = target.forward(tree, cache)
            outputs.append(output)
            slots.append(cache.rows(range(-21, tree.size)))
            assert cache.length == 21, "nothing more is committed"
        for plain_rows, padded_rows in zip(*((part.logits.rows, part.hidden.rows) for part in outputs), strict=True):
            assert plain_rows.shape == padded_rows.shape
            assert apart(padded_rows, plain_rows) < TOLERANCE
        assert apart(slots[1], slots[0]) < TOLERANCE
    assert all(width % multiple == 0 for width in widths) and len(widths) == 14


def test_a_filled_up_forward_gives_the_last_rows_logits_and_runs_the_layers_requested(tiny):
    plain = tiny(SHARDED).target
    padded, tokens = filled(plain, 8), torch.tensor(prompt_ids(5))
    with torch.inference_mode():
        for more in ({"last": True}, {"layers": (0, 2)}):
            one, other = (
                target.forward_tensors(tokens, torch.arange(5), causal(5), target.cache(5), **more)
                for target in (plain, padded)
            )
            assert one.logits.shape == other.logits.shape
            assert apart(other.logits, one.logits) < TOLERANCE
        assert padded.forward_tensors(tokens[None], torch.arange(5), causal(5)).logits.shape == (1, 5, 320), (
            "with a cache only"
        )


@pytest.mark.slow
def test_a_tree_at_the_very_end_of_the_slots_has_room_to_be_filled_up(tiny):
    model, tree = tiny("qwen2-grouped-yarn"), DraftTree.chain([77, 78, 79])
    prompt = prompt_ids(BUCKET - tree.size, seed=4)
    target = filled(model.target, 8)
    cache = target.cache(BUCKET)
    with torch.inference_mode():
        for start in range(0, len(prompt), 100):
            prefill(target, cache, prompt[start : start + 100])
        assert cache.capacity == BUCKET == cache.length + tree.size
        ours = target.forward(tree, cache)
        cache.keep(range(3))
        after = prefill(target, cache, [80])
    stock = stock_logits(model.stock, [*prompt, 77, 78, 79, 80])
    assert apart(ours.logits.rows, stock[-4:-1]) < TOLERANCE
    assert apart(after, stock[-1:]) < TOLERANCE


@pytest.mark.slow
def test_a_text_that_fills_the_whole_context_is_filled_up_beyond_it(tiny):
    model, prompt = tiny("llama-grouped-dynamic"), prompt_ids(120, seed=2)
    replies = []
    for multiple in (1, 8):
        target = filled(model.target, multiple)
        target.stop_tokens = frozenset()
        *_, done = Session(target, Autoregressive(), Budget(0)).generate(prompt, Sampling(), Limits())
        replies.append(done.statistics.token_ids)
    assert len(replies[0]) == 8, "128 tokens are the context"
    assert replies[0] == replies[1]


# -- bytes -------------------------------------------------------------------------------------------------------------


@each("dtype", [torch.float32, torch.bfloat16])
@each("name, tied", [("qwen2-many-heads-mixed-window-tied", True), ("qwen2-grouped-yarn", False)])
def test_bytes_are_those_of_the_weights_and_of_what_a_step_reads(tiny, name, tied, dtype):
    model = tiny(name)
    size = 2 if dtype == torch.bfloat16 else 4
    whole = size * sum(parameter.numel() for parameter in model.stock.parameters())  # a tied one counts once
    target = Target.load(model.path, dtype=dtype)
    assert target.nbytes == whole
    assert target.read_bytes == whole - (0 if tied else size * 320 * 48)


# -- files that are not what they should be ----------------------------------------------------------------------------


def test_a_file_that_was_cut_off_is_reported_by_name(tiny, tmp_path):
    path = shutil.copytree(tiny("qwen2-grouped-yarn").path, tmp_path / "cut")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(LocalspecError, match=r"model\.safetensors.*damaged|damaged.*model\.safetensors"):
        Target.load(path)


# -- rotations that depend on the length of the text -------------------------------------------------------------------


@pytest.mark.slow
def test_a_context_within_the_original_one_uses_the_short_factors(tiny):
    model = tiny(LONGROPE)
    assert model.target.context == 64, "the context the model was mostly trained with is the default"
    tokens = prompt_ids(64, seed=9)
    with torch.no_grad():
        ours = model.target.forward_tensors(torch.tensor(tokens), torch.arange(64), causal(64)).logits
    assert apart(ours, stock_logits(model.stock, tokens)) < TOLERANCE


def test_a_context_above_the_original_one_uses_the_long_factors_from_the_first_token_on(tiny):
    """The stock model takes the long factors only for a long text, so it reads one whose beginning is compared."""
    model, tokens = tiny(LONGROPE), prompt_ids(70, seed=10)
    target = Target.load(model.path, context=65)
    with torch.no_grad():
        ours = target.forward_tensors(torch.tensor(tokens[:20]), torch.arange(20), causal(20)).logits
    long, short = stock_logits(model.stock, tokens)[:20], stock_logits(model.stock, tokens[:20])
    assert apart(ours, long) < TOLERANCE
    assert apart(ours, short) > 100 * TOLERANCE, "the factors make a difference at all"


def test_dynamic_scaling_beyond_the_models_length_is_that_of_a_text_which_fills_the_context(tiny):
    model, tokens = tiny(DYNAMIC), prompt_ids(200, seed=11)
    target = Target.load(model.path, context=200)
    with torch.no_grad():
        ours = target.forward_tensors(torch.tensor(tokens), torch.arange(200), causal(200)).logits
    stock = AutoModelForCausalLM.from_pretrained(model.path, attn_implementation="eager", dtype=torch.float32)
    assert apart(ours, stock_logits(stock, tokens)) < TOLERANCE


@each("name, most", [(LONGROPE, 256), (DYNAMIC, 256), ("qwen2-grouped-yarn", 512)])
def test_a_context_the_model_was_not_made_for_is_refused_with_the_longest_it_was(tiny, name, most):
    path = tiny(name).path
    assert Target.load(path, context=most).context == most
    with pytest.raises(UsageMistake, match=rf"{most + 1} tokens is more than the {most}\b.*ask for {most} or fewer"):
        Target.load(path, context=most + 1)


# -- what would not be computed the same is refused by name ------------------------------------------------------------


def altered(model: Tiny, path: Path, **values: object) -> Path:
    """Return the model's directory with other values in config.json; None removes a key."""
    path.mkdir(exist_ok=True)
    for file in model.path.iterdir():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    config = {**json.loads((model.path / "config.json").read_text()), **values}
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


@each(
    "values, named",
    [
        ({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}, "GemmaForCausalLM"),
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "MixtralForCausalLM"),
        # The tensors have the same names, the norms add one and the embedding is scaled: all text would be wrong.
        ({"model_type": "gemma"}, "gemma"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "gelu_pytorch_tanh"),
        ({"layer_types": ["sliding_attention", "full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        # The weights have the right names and shapes, their scales are in separate tensors.
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
    ],
)
def test_what_cannot_be_computed_the_same_is_refused_by_name(tiny, tmp_path, values, named):
    path = altered(tiny(GROUPED_QWEN3), tmp_path / "altered", **values)
    with pytest.raises(LocalspecError, match=named):
        Target.load(path)


def test_a_head_of_its_own_counts_though_the_config_says_tied(tiny, tmp_path):
    """As in the stock model: a head in the file is loaded."""
    model, tokens = tiny("llama-grouped-dynamic"), prompt_ids(20, seed=3)
    assert not model.stock.config.tie_word_embeddings
    target = Target.load(altered(model, tmp_path / "altered", tie_word_embeddings=True))
    with torch.no_grad():
        ours = target.forward_tensors(torch.tensor(tokens), torch.arange(20), causal(20)).logits
    assert apart(ours, stock_logits(model.stock, tokens)) < TOLERANCE


@pytest.mark.slow
def test_a_key_that_the_family_does_not_know_changes_nothing(tiny, tmp_path):
    """The stock Llama has no windows, whatever its config.json says: converted models keep such keys."""
    model, tokens = tiny("llama-one-key-head-tied-linear"), prompt_ids(40, seed=12)
    target = Target.load(altered(model, tmp_path / "altered", sliding_window=8))
    with torch.no_grad():
        ours = target.forward_tensors(torch.tensor(tokens), torch.arange(40), causal(40)).logits
    assert apart(ours, stock_logits(model.stock, tokens)) < TOLERANCE


@each(
    "values, named",
    [
        ({"num_hidden_layers": 3_000_000}, "3000000 layers"),
        ({"num_hidden_layers": 4}, r"model\.layers\.3\."),
        ({"num_key_value_heads": 4}, r"k_proj\.weight.*24.*48"),
    ],
)
def test_weights_that_are_not_what_the_config_promises_are_named(tiny, tmp_path, values, named):
    path = altered(tiny("llama-grouped-dynamic"), tmp_path / "altered", **values)
    with pytest.raises(LocalspecError, match=named):
        Target.load(path)


@pytest.mark.slow
@each("kind", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_configs_as_old_files_write_them_are_read_as_transformers_reads_them(kind, tmp_path):
    """Before version 5, rope_theta and rope_scaling were at the top level of config.json."""
    config = kind(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=320, max_position_embeddings=256, eos_token_id=4, bos_token_id=None,
    )  # fmt: skip
    path = write(tmp_path / "old", config, byte_tokenizer(), seed=1)
    content = json.loads((path / "config.json").read_text())
    del content["rope_parameters"]
    content |= {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 3.0}}
    (path / "config.json").write_text(json.dumps(content))
    stock = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    tokens = prompt_ids(40, seed=13)
    with torch.no_grad():
        ours = Target.load(path).forward_tensors(torch.tensor(tokens), torch.arange(40), causal(40)).logits
    assert apart(ours, stock_logits(stock, tokens)) < TOLERANCE
