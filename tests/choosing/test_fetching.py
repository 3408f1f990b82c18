"""Which files a pull fetches for a name, and its message about memory."""

from dataclasses import replace

import pytest
from each import each
from golden import matching, wording
from machines import BILLION, LITTLE, cpu, gpu, machine, unfetched

from localspec.choosing import fetching as module
from localspec.choosing.fetching import fit, pull_set, to_make
from localspec.choosing.measure import NoMeasurements
from localspec.choosing.survey import form_bytes, original_bytes, recommend, suited_form
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.hub.sources import Source
from localspec.models.entries import UNLICENSED, Entry, Form, PublishedDrafter, PublishedLength
from localspec.models.model import model_of
from localspec.models.registry import cards
from localspec.models.shape import Shape

HEADS = PublishedDrafter("medusa", Source("org/heads"), 10**6, PublishedLength(3.0, 4, "a paper"))
CONFIG = {
    "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}  # fmt: skip
MODEL, GPU = Source("org/model"), machine(gpu(24))


def fetched(*published: PublishedDrafter, drafter: str | None = None) -> list[str]:
    card = unfetched(BILLION, drafters=published)
    return [source.repo for source in pull_set(card, drafter, GPU, NoMeasurements()).sources]


def test_the_published_drafter_that_pays_comes_along() -> None:
    assert fetched(HEADS) == ["org/model", "org/heads"]
    weak = PublishedDrafter("medusa", Source("org/heads"), 10**9, PublishedLength(1.1, 4, "a paper"))
    assert fetched(weak) == ["org/model"]
    assert fetched(PublishedDrafter("s3d")) == ["org/model"], "what nobody publishes cannot be fetched"
    assert fetched(HEADS, drafter="none") == ["org/model"] and fetched(weak, drafter="medusa")[1:] == ["org/heads"]


def test_weights_without_a_stated_license_come_only_if_named() -> None:
    heads = replace(HEADS, license=UNLICENSED)
    assert fetched(heads) == ["org/model"] and fetched(heads, drafter="medusa") == ["org/model", "org/heads"]


def test_what_is_not_published_is_refused_with_what_is() -> None:
    with pytest.raises(UsageMistake, match=matching("did_you_mean_medusa_2")):
        fetched(HEADS, drafter="medus")
    with pytest.raises(UsageMistake, match=matching("localspec_train_s3d_m_big")):
        fetched(PublishedDrafter("s3d"), drafter="s3d")


def test_a_layer_of_the_models_own_files_comes_with_it_where_its_family_has_one() -> None:
    found = pull_set(cards()["qwen3.5-4b"], "mtp", GPU, NoMeasurements())
    assert [one.repo for one in found.sources] == ["Qwen/Qwen3.5-4B"] and wording("layer_comes_model") in found.why
    with pytest.raises(UsageMistake, match=matching("drafts_only_models_files")):
        pull_set(cards()["smollm3-3b"], "mtp", GPU, NoMeasurements())
    with pytest.raises(UsageMistake, match=matching("drafts_only_gemma_4")):
        pull_set(cards()["smollm3-3b"], "assistant", GPU, NoMeasurements())
    assert len(pull_set(cards()["gemma-4-e2b-it"], "assistant", GPU, NoMeasurements()).sources) == 2


def test_with_an_entry_without_sizes_the_first_that_is_published_comes_along() -> None:
    found = pull_set(unfetched(None, drafters=(PublishedDrafter("s3d"), HEADS)), None, GPU, NoMeasurements())
    assert found.sources == (MODEL, Source("org/heads")) and "no sizes" in found.why


@each("rule", ["auto", "memory", "speed"])
def test_what_comes_along_is_chosen_by_the_rule_that_is_set(rule, monkeypatch) -> None:
    seen = []

    def found(*args, **named):
        seen.append(named["rule"])
        return recommend(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, "recommend", found)
        pull_set(unfetched(BILLION, drafters=(HEADS,)), None, GPU, NoMeasurements(), Settings(drafter_rule=rule))
    assert seen == [rule]


def test_a_packing_that_no_device_has_is_refused_as_a_load_refuses_it():
    """NF4 needs a GPU, and no device has it for recurrent layers."""
    cards_ = unfetched(BILLION), cards()["qwen3.5-4b"]
    nf4, cpus = Settings(quantize="nf4"), machine(cpu(24))
    for card, here in ((cards_[0], cpus), (cards_[1], cpus), (cards_[1], GPU)):
        shape = card.entry.shape
        with pytest.raises(UsageMistake, match=matching("quantize_nf4_cannot_be_had")):
            pull_set(card, None, here, NoMeasurements(), nf4)
        with pytest.raises(UsageMistake, match=matching("quantize_nf4_cannot_be_had")):
            fit("name", shape, 1, here, NoMeasurements(), settings=nf4)
    found = pull_set(cards_[0], None, GPU, NoMeasurements(), nf4).recommendation
    assert found and found.plan and found.plan.precision.quantize == "nf4"


@each("quantize", ["int8", "int4"])
def test_the_drafter_and_the_memory_are_of_the_packing_that_is_asked(quantize) -> None:
    card, asked, here = unfetched(BILLION), Settings(quantize=quantize), machine(cpu(24))
    chosen = pull_set(card, None, here, NoMeasurements(), asked)
    assert chosen.recommendation and chosen.recommendation.plan and f"in {quantize}:" in chosen.why
    fits, said = fit("big", BILLION, 1, here, NoMeasurements(), settings=asked, chosen=chosen.recommendation)
    assert fits and said.startswith(f"{chosen.recommendation.plan.bytes / 2**30:.1f} GiB in {quantize} on cpu")
    assert "tokens/s" not in said, "the drafter's clause says it"


def test_what_is_left_to_make() -> None:
    assert to_make(unfetched(BILLION, drafters=(HEADS, PublishedDrafter("s3d")))) == "s3d"
    assert to_make(unfetched(BILLION, drafters=(HEADS, PublishedDrafter("ouroboros")))) is None


def test_whether_it_fits() -> None:
    fits, said = fit("org/name", Shape.of(CONFIG), 2 * BILLION.parameters, GPU, NoMeasurements())
    assert fits and wording("gib_that_may_be_taken") in said
    fits, said = fit("org/name", Shape.of(CONFIG), 2 * BILLION.parameters, machine(cpu(1.5)), NoMeasurements())
    assert fits is False and said.startswith(wording("org_name_does_not_fit_2"))
    drafter_bytes = int(
        gpu(24).usable - 1.5 * BILLION.parameters
    )  # the free memory has room for half of the model's bytes at most
    assert fit("org/name", Shape.of(CONFIG), 2 * BILLION.parameters, GPU, NoMeasurements(), drafter_bytes)[0]
    assert fit("org/name", Shape.of(CONFIG), 2 * BILLION.parameters, GPU, NoMeasurements(), gpu(24).usable)[0] is False


def test_a_config_that_promises_another_model_than_its_weights_are_is_not_believed() -> None:
    assert fit("org/name", Shape.of(CONFIG), 40 * 2**30, GPU, NoMeasurements())[0] is None
    assert fit("org/name", Shape.of({**CONFIG, "hidden_size": "wide"}), 1, GPU, NoMeasurements())[0] is None
    assert LITTLE.parameters < module.SLACK


Q8_0 = Form(Source("org/gguf", gguf="Q8_0"), "Somebody", "MIT", 1000)
ENTRY = Entry("big", source=Source("org/model"), publisher="Somebody", shape=BILLION, forms=(Q8_0,))


def test_eight_bits_serve_where_eight_or_four_are_kept_and_nowhere_else():
    assert suited_form(ENTRY, "int8") is suited_form(ENTRY, "int4") is Q8_0
    assert [suited_form(ENTRY, packing) for packing in (None, "none", "nf4")] == [None] * 3


@each(
    "unlike",
    [
        {"forms": (replace(Q8_0, publisher="Another"),)},
        {"forms": (replace(Q8_0, publisher=""),), "publisher": ""},
        {"forms": (replace(Q8_0, source=Source("org/gguf", gguf="Q4_K_M")),)},
        {"forms": (replace(Q8_0, source=Source("org/copy")),)},
        {"gated": True},
        {"drafters": (PublishedDrafter("s3d"),)},
        {"drafters": (PublishedDrafter("medusa", Source("org/heads")),)},
    ],
)
def test_what_is_not_the_publishers_or_needs_its_weights_is_not_taken(unlike):
    assert suited_form(replace(ENTRY, **unlike), "int8") is None


def test_the_smallest_of_several_and_sizes_that_are_counted():
    smaller = replace(Q8_0, source=Source("org/other", gguf="Q8_0"), bytes=999)
    assert suited_form(replace(ENTRY, forms=(Q8_0, smaller)), "int8") is smaller
    counted = replace(Q8_0, bytes=None)
    assert form_bytes(counted, ENTRY) == BILLION.parameters * 34 // 32 and form_bytes(Q8_0, ENTRY) == 1000
    assert original_bytes(ENTRY) == 2 * BILLION.parameters and form_bytes(counted, replace(ENTRY, shape=None)) is None
    drafted = replace(
        ENTRY, drafters=(PublishedDrafter("parallelspec", Source("org/pard")), PublishedDrafter("ouroboros"))
    )
    assert suited_form(drafted, "int8") is Q8_0


def test_doctor_names_the_download_that_a_pull_would_take():
    card = replace(unfetched(BILLION), entry=ENTRY)

    def told(*devices):
        return recommend(model_of(card), machine(*devices), NoMeasurements(), here=False).to_fetch.bytes

    assert told(cpu(24)) == 1000 and told(gpu(24)) == 2 * BILLION.parameters
