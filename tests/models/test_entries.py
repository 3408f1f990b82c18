"""models.toml, read strictly; and that the one which comes with localspec is sound."""

from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from golden import matching, wording

from localspec.choosing.survey import suited_form
from localspec.errors import NotHere, UsageMistake
from localspec.hub.sources import Source
from localspec.models.drafter_kinds import kind_of, kinds
from localspec.models.entries import PACKAGE, Entry, Form, PublishedDrafter, PublishedLength, read_entries
from localspec.models.registry import cards, installed, named_card, resolve
from localspec.models.shape import Shape
from localspec.paths import Paths

SHAPE = "{ layers = 2, width = 8, inner = 16, heads = 4, key_heads = 2, head_width = 2, vocabulary = 32, context = 64 }"
EVERYTHING = f"""
[all]
repo = "org/name"
revision = "v1.0"
license = "MIT"
description = "Everything."
publisher = "Somebody"
quality = 40
draft = "small"
gated = true
verified = true
architecture = "Qwen3ForCausalLM"
thinking = "switch"
shape = {SHAPE[:-2]}, tied = true }}
[[all.drafters]]
kind = "medusa"
repo = "org/heads"
revision = "abc"
license = "Apache-2.0"
publisher = "Somebody else"
parameters = 1000
bytes = 2500
lossless = false
accepted = {{ length = 2.5, depth = 4, source = "a paper" }}
[[all.drafters]]
kind = "s3d"
[[all.forms]]
repo = "org/name-GGUF"
revision = "v2"
gguf = "q8_0"
license = "MIT"
publisher = "Somebody"
bytes = 1000
[[all.forms]]
repo = "other/copy"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def read(file: Path, text: str) -> list[Entry]:
    file.write_text(text)
    return list(read_entries(file))


def test_everything_that_an_entry_can_say(file: Path) -> None:
    (entry,) = read(file, EVERYTHING)
    heads = PublishedDrafter(
        "medusa",
        Source("org/heads", "abc"),
        1000,
        PublishedLength(2.5, 4, "a paper"),
        "Apache-2.0",
        "Somebody else",
        False,
        2500,
    )
    assert entry == Entry(
        name="all", source=Source("org/name", "v1.0"), license="MIT", description="Everything.", draft="small",
        publisher="Somebody", quality=40, gated=True, verified=True, architecture="Qwen3ForCausalLM", thinking="switch",
        shape=Shape(2, 8, 16, 4, 2, 2, 32, 64, tied=True), drafters=(heads, PublishedDrafter("s3d")),
        forms=(Form(Source("org/name-GGUF", "v2", "Q8_0"), "Somebody", "MIT", 1000), Form(Source("other/copy"))),
    )  # fmt: skip
    assert list(map(str, entry.sources)) == ["org/name@v1.0", "org/name-GGUF@v2:Q8_0", "other/copy"]


def test_what_is_left_out_has_a_value_that_promises_nothing(file: Path) -> None:
    (entry,) = read(file, '[m]\nrepo = "org/name"\n')
    assert entry == Entry("m", source=Source("org/name", "main"))
    assert (entry.gated, entry.verified, entry.quality, entry.shape, entry.drafters) == (False, False, 0, None, ())
    assert (entry.architecture, entry.thinking, entry.forms) == (None, None, ())
    drafter = PublishedDrafter("s3d")
    assert (drafter.source, drafter.parameters, drafter.accepted, drafter.lossless) == (None, None, None, True)


def test_paths_are_relative_to_their_file_to_the_home_or_to_the_package(file: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = '[a]\npath = "x"\n[b]\npath = "/y"\n[c]\npath = "~/z"\n[d]\npath = "package:demo"\ndraft = "./s"\n'
    entries = read(file, text)
    assert [entry.path for entry in entries] == [file.parent / "x", Path("/y"), Path("/home/me/z"), PACKAGE / "demo"]
    assert [entry.draft for entry in entries] == ["", "", "", str(file.parent / "s")]


def test_entries_come_in_the_order_of_the_file_and_a_missing_file_has_no_entries(file: Path) -> None:
    assert [entry.name for entry in read(file, '[z]\npath = "x"\n[a]\npath = "x"\n')] == ["z", "a"]
    assert read(file, "") == [] == list(read_entries(file.parent / "missing.toml"))


M = '[m]\nrepo = "org/name"\n'
D = M + '[[m.drafters]]\nkind = "medusa"\n'


@each(
    "text, said",
    [
        # neither a place nor two
        ("[m]\n", wording("model_m_path_give_path_model_s")),
        (M + 'path = "x"\n', wording("model_m_both_path_repo_give_path")),
        ('m = "x"\n', wording("m_table_write_m_path_below")),
        ("[m\n", "line 1"),
        # unknown keys, with the nearest
        ('[m]\nreop = "org/name"\n', "Unknown key 'reop' of model 'm' in {file} (did you mean 'repo'?)"),
        (M + 'licence = "MIT"\n', wording("did_you_mean_license")),
        (M + "qualty = 3\n", wording("did_you_mean_quality")),
        (M + "zzzzzz = 3\n", "Unknown key 'zzzzzz' of model 'm' in {file}; correct or remove it"),
        (M + 'name = "x"\n', "Unknown key 'name'"),
        (M + 'source = "x"\n', "Unknown key 'source'"),
        (D + 'paramters = 3\n', "Unknown key 'paramters' of a drafter of model 'm' in {file} (did you mean 'parameters'?)"),
        (D + 'accepted = { length = 2, depth = 4, sorce = "x" }\n', "of the table 'accepted' of a drafter of model 'm' .*'source'"),
        (M + f"shape = {SHAPE.replace('inner', 'iner')}\n", "'iner' of the table shape of model 'm' .*'inner'"),
        # values of another kind
        (M + "description = 3\n", "description = 3 of model 'm' in {file} must be a text; correct it"),
        ("[m]\npath = 3\n", wording("must_be_a_text")),
        (M + 'license = ""\n', "license = '' of .* must be a text"),
        (M + 'publisher = "a\\u0000b"\n', "publisher = .* must be a text"),
        (M + 'quality = "best"\n', "quality = 'best' of .* must be a whole number from 1 up"),
        (M + "quality = 0\n", "quality = 0 of .* must be a whole number from 1 up"),
        (M + "quality = true\n", "quality = True of .* must be a whole number from 1 up"),
        (M + "quality = 2.0\n", "quality = 2.0 of .* must be a whole number from 1 up"),
        (M + "quality = 9999999999999\n", wording("must_whole_number_from_1_up")),
        (M + "gated = 1\n", "gated = 1 of .* must be true or false"),
        (M + 'verified = "no"\n', "verified = 'no' of .* must be true or false"),
        (M + "shape = 3\n", "shape = 3 of .* must be a table"),
        (M + "drafters = 3\n", "drafters = 3 of .* must be tables"),
        (M + 'drafters = ["medusa"]\n', "must be tables"),
        (M + f"shape = {SHAPE.replace('layers = 2', 'layers = 0')}\n", "layers = 0 of the table shape of .* a whole number"),
        (M + f"shape = {SHAPE[:-2]}, tied = 1 }}\n", "tied = 1 of the table shape of .* must be true or false"),
        (M + "shape = { layers = 2 }\n", "The table shape of model 'm' in {file} lacks width; add it"),
        # where from
        ('[m]\nrepo = "name"\n', "repo = 'name' of model 'm' in {file} names no repository; write repo = \"org/name\""),
        ('[m]\nrepo = "org/na me"\n', "names no repository"),
        ('[m]\nrepo = "org/name"\nrevision = "a b"\n', "names no repository"),
        ('[m]\nrepo = "https://example.org/org/name"\n', "names no repository"),
        ('[m]\npath = "x"\nrevision = "v1"\n', "revision = 'v1' of model 'm' in {file} has no effect without a repo"),
        (D + 'revision = "v1"\n', wording("revision_v1_drafter_model_m")),
        (D + 'repo = "heads"\n', "repo = 'heads' of a drafter of model 'm' in {file} names no repository"),
        # forms
        (M + "forms = 3\n", "forms = 3 of .* must be tables"),
        (M + 'sha256 = "ab"\n', wording("sha256_ab_model_m_must_list_sha")),
        (M + f'sha256 = ["{"A" * 64}"]\n', wording("must_list_sha_256_digests_each_64")),
        (f'[m]\npath = "x"\nsha256 = ["{"a" * 64}"]\n', wording("model_m_path_imported_file")),
        (M + '[[m.forms]]\ngguf = "Q8_0"\n', "An entry of forms of model 'm' in {file} lacks the key repo; add repo = "),
        (M + '[[m.forms]]\nrepo = "a/b"\ngguf = "Q8 0"\n', "gguf = 'Q8 0' of an entry of forms of .* names no type of GGUF"),
        (M + '[[m.forms]]\nrepo = "b"\ngguf = "Q8_0"\n', "repo = 'b' of an entry of forms of .* names no repository"),
        (M + '[[m.forms]]\nrepo = "a/b"\nkind = "Q8_0"\n', "Unknown key 'kind' of an entry of forms of model 'm'"),
        ('[m]\npath = "x"\n[[m.forms]]\nrepo = "a/b"\n', wording("model_m_forms_repo")),
        # what it is
        (M + 'architecture = "GPT2LMHeadModel"\n', "architecture = 'GPT2LMHeadModel' of .* must be one of LlamaForC"),
        (M + 'architecture = ["x"]\n', "architecture = .* must be one of"),
        (M + 'thinking = "yes"\n', "thinking = 'yes' of .* must be one of no, always, switch"),
        # drafters
        (M + '[[m.drafters]]\nkind = "medusaa"\n', "kind = 'medusaa' of a drafter of .*(did you mean 'medusa'?)"),
        (M + '[[m.drafters]]\nrepo = "org/heads"\n', "kind = None of a drafter of .*; use one of assistant, dflash, draft_model, dspark"),
        (M + '[[m.drafters]]\nkind = "phrases"\n', wording("is_no_kind_of_drafter")),
        (M + "[[m.drafters]]\nkind = 3\n", "kind = 3 of a drafter of .* must be a text"),
        (D + "parameters = 0\n", "parameters = 0 of a drafter of .* must be a whole number"),
        (D + "lossless = 1\n", "lossless = 1 of a drafter of .* must be true or false"),
        (D + "accepted = 2.3\n", "accepted = 2.3 of a drafter of .* must be a table"),
        (D + "accepted = { length = 2.3, depth = 4 }\n", "The table 'accepted' of a drafter of model 'm' in {file} lacks source; add"),
        (D + 'accepted = { length = 0.5, depth = 4, source = "x" }\n', "length = 0.5 .* must be a number from 1 to 100"),
        (D + 'accepted = { length = 101, depth = 4, source = "x" }\n', wording("must_number_from_1_100")),
        (D + 'accepted = { length = nan, depth = 4, source = "x" }\n', wording("must_number_from_1_100")),
        (D + 'accepted = { length = "2", depth = 4, source = "x" }\n', wording("must_number_from_1_100")),
        (D + 'accepted = { length = 2, depth = 0, source = "x" }\n', "depth = 0 of the table 'accepted' .* whole number"),
        (D + 'accepted = { length = 2, depth = 4, source = "" }\n', "source = '' of the table 'accepted' .* must be a text"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_sentence_that_names_it(file: Path, text: str, said: str) -> None:
    with pytest.raises(UsageMistake) as caught:
        read(file, text)
    message = str(caught.value)
    assert all(part in message for part in said.replace("{file}", str(file)).split(".*")), message
    assert message.endswith(".") and "\n" not in message and str(file) in message


@pytest.fixture
def paths(tmp_path: Path, monkeypatch) -> Paths:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    (tmp_path / "config").mkdir()
    return Paths(tmp_path)


def test_the_users_file_adds_models_and_replaces_those_of_a_name(paths: Paths) -> None:
    shipped = cards(paths)
    paths.user_models_file.write_text('[qwen3-8b]\nrepo = "me/mine"\n[mine]\nrepo = "me/other"\nquality = 99\n')
    both = cards(paths)
    assert [*both] == [*shipped, "mine"], "what is replaced keeps its place"
    mine = both["qwen3-8b"].entry
    assert mine == Entry("qwen3-8b", source=Source("me/mine")), "all of it, no mixture of both"
    assert all(both[name] == shipped[name] for name in shipped if name != "qwen3-8b")


def test_a_mistake_in_the_users_file_is_reported_whatever_is_requested(paths: Paths) -> None:
    paths.user_models_file.write_text('[mine]\nreop = "x"\n')
    with pytest.raises(UsageMistake, match=r"'reop' .*models\.toml \(did you mean 'repo'"):
        resolve("demo", paths)


def test_a_model_that_is_not_fetched_is_known_and_not_here(paths: Paths) -> None:
    card = named_card("qwen3-8b", paths)
    assert not card.here and card.license == "Apache-2.0"
    with pytest.raises(NotHere, match=f"^{matching('qwen3_8b_is_not_here_fetch')}$"):
        resolve("qwen3-8b", paths)
    with pytest.raises(NotHere, match=matching("did_you_mean_qwen3_8b")):
        named_card("qwen3-8", paths)
    assert [card.name for card, _ in installed(paths)] == ["demo", "demo-draft"]


def test_a_shape_says_of_layers_that_differ_what_config_json_says(file: Path) -> None:
    more = "config = { linear_num_value_heads = 16, linear_key_head_dim = 4, linear_value_head_dim = 4 }"
    text = f'[a]\nrepo = "org/a"\narchitecture = "ONE"\nshape = {SHAPE[:-2]}, {more} }}\n'
    (entry,) = read(file, text.replace("ONE", "Qwen3_5ForConditionalGeneration"))
    assert entry.shape and entry.shape.delta and entry.shape.delta.value_heads == 16
    for changed in (text.replace("ONE", "LlamaForCausalLM"), text.replace('architecture = "ONE"\n', "")):
        with pytest.raises(UsageMistake, match="layers that differ"):
            read(file, changed)


@pytest.fixture
def shipped(paths: Paths) -> dict[str, Entry]:
    return {name: card.entry for name, card in cards(paths).items() if card.entry}


def test_every_shipped_entry_says_what_a_user_wants_to_know(shipped: dict[str, Entry]) -> None:
    for name, entry in shipped.items():
        assert entry.license and entry.publisher and entry.description.endswith("."), name
        assert (entry.source is None) == (entry.shape is None) == name.startswith("demo"), name
        assert not entry.verified or entry.source is None, "nobody has fetched it yet"


def test_a_download_is_as_large_as_said_or_two_bytes_a_parameter() -> None:
    heads = PublishedDrafter("medusa", Source("org/heads"), 1000)
    assert (heads.download, replace(heads, bytes=2500).download) == (2000, 2500)
    assert replace(heads, parameters=None).download is None


def test_every_shipped_entry_names_architecture_thinking_and_its_other_forms(shipped: dict[str, Entry]) -> None:
    for name, entry in shipped.items():
        assert entry.thinking, name
        assert (entry.architecture is None) == (entry.source is None), name
        for form in entry.forms:
            assert form.publisher and form.license == entry.license, name
            alone = replace(entry, forms=(form,))
            fewer = form.source.gguf not in ("", "Q8_0")
            assert not fewer or suited_form(alone, "int8") is suited_form(alone, "int4", packed=True) is None, name
            assert form.publisher == entry.publisher or suited_form(alone, "int4") is None, name
            assert not form.bytes or form.bytes < 1.5 * entry.shape.parameters, name
            heads = [kind_of(one.kind) for one in entry.drafters if one.source]
            whole = [one.name for one in heads if not (one.mask_key or one.by_shapes)]
            assert not form.source.gguf or not whole, "these heads need the model's own weights"
    thinks = {name: entry.thinking for name, entry in shipped.items() if entry.thinking != "no"}
    assert {thinks.pop(name) for name in ("deepseek-r1-qwen-7b", "gpt-oss-20b")} == {"always"}
    assert {*thinks.values()} == {"switch"}
    sizes = ("0.6b", "1.7b", "4b", "8b", "14b")
    newer = {name for name in shipped if name.startswith(("qwen3.5-", "gemma-4-"))}
    older = {*(f"qwen3-{size}" for size in sizes), "smollm3-3b", "granite-3.2-2b", "granite-3.2-8b"}
    assert len(newer) == 9 and {*thinks} == newer | older


def test_docs_registry_has_a_row_for_every_entry_form_and_drafter_and_no_other_row(shipped) -> None:
    page = (Path(__file__).parents[2] / "docs" / "figures" / "registry.md").read_text("utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    models = {name for name, entry in shipped.items() if entry.source}
    forms = {str(form.source) for entry in shipped.values() for form in entry.forms}
    drafters = {str(one.source) for entry in shipped.values() for one in entry.drafters if one.source}
    assert sorted(rows) == sorted(models | forms | drafters)


def test_every_draft_is_registered_and_smaller_with_the_same_vocabulary(shipped: dict[str, Entry]) -> None:
    for name, entry in shipped.items():
        if entry.draft:
            small, large = shipped[entry.draft].shape, entry.shape
            assert entry.draft in shipped and not shipped[entry.draft].draft, name
            if small and large:
                assert small.parameters < large.parameters / 2, name
                # Qwen2.5-7B and 0.5B share a tokenizer, and pad it to unlike lengths
                assert abs(small.vocab_size - large.vocab_size) <= 128, name


def test_a_pair_has_a_small_model_and_a_published_drafter_a_licence_and_size(shipped: dict[str, Entry]) -> None:
    for name, entry in shipped.items():
        listed = [drafter.kind for drafter in entry.drafters]
        assert len({*listed}) == len(listed) and {*listed} <= {*kinds("weights", "published", "draft model")}, name
        for drafter in entry.drafters:
            assert drafter.kind not in ("ouroboros", "draft_model") or entry.draft, name
            assert drafter.source is None or (drafter.license and drafter.publisher and drafter.parameters), name
            assert drafter.accepted is None or drafter.accepted.source, name
            assert drafter.lossless, name


def test_no_two_different_models_are_of_the_same_quality(shipped: dict[str, Entry]) -> None:
    qualities = [entry.quality for entry in shipped.values()]
    assert len({*qualities}) == len(qualities) and min(qualities) >= 1
    assert shipped["demo"].quality < min(entry.quality for entry in shipped.values() if entry.source)
    families = [
        ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"],
        ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b"],
        ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "qwen2.5-coder-7b"],
        ["llama3.2-1b", "llama3.2-3b", "llama3.1-8b"],
        ["smollm2-135m", "smollm2-360m", "smollm2-1.7b"],
        ["phi4-mini", "phi4"],
        ["qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b"],
        ["gemma-4-e2b-it", "gemma-4-e4b-it", "gemma-4-12b-it"],
        ["granite-3.2-2b", "granite-3.2-8b"],
        ["gemma-3-270m-it", "gemma-3-1b-it", "gemma-3-4b-it", "gemma-3-12b-it"],
    ]
    for family in families:
        ordered = [shipped[name].quality for name in family]
        assert ordered == sorted(ordered), "within a family more parameters are better"


def test_gated_models_are_those_whose_terms_must_be_accepted(shipped: dict[str, Entry]) -> None:
    gated = {name for name in shipped if name.startswith("gemma-3")}
    gated |= {"llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "mistral-7b", "mistral-7b-medusa"}
    assert {name for name, entry in shipped.items() if entry.gated} == gated


def test_the_models_of_the_issue_are_registered(shipped: dict[str, Entry]) -> None:
    for name in ("phi3-s3d", "phi3-medusa"):
        assert shipped[name].source == Source("microsoft/Phi-3-mini-4k-instruct")
        assert [drafter.kind for drafter in shipped[name].drafters] == [name.removeprefix("phi3-")]
    heads = shipped["mistral-7b-medusa"].drafters[0]
    assert heads.kind == "medusa"
    assert heads.source == Source("text-generation-inference/Mistral-7B-Instruct-v0.2-medusa")
