"""What a pull fetches for a name, and what is said of its memory."""

import pytest
from golden import matching, wording
from machines import BILLION, LITTLE, cpu, gpu, machine, unfetched

from localspec.errors import UsageMistake
from localspec.hub.sources import Source
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.policy import pull_set as module
from localspec.policy.measurements import NoMeasurements
from localspec.policy.pull_set import fit, pull_set, to_make

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


def test_what_is_not_published_is_refused_with_what_is() -> None:
    with pytest.raises(UsageMistake, match=matching("did_you_mean_medusa_2")):
        fetched(HEADS, drafter="medus")
    with pytest.raises(UsageMistake, match=matching("localspec_train_s3d_m_big")):
        fetched(PublishedDrafter("s3d"), drafter="s3d")


def test_with_an_entry_without_sizes_the_first_that_is_published_comes_along() -> None:
    found = pull_set(unfetched(None, drafters=(PublishedDrafter("s3d"), HEADS)), None, GPU, NoMeasurements())
    assert found.sources == (MODEL, Source("org/heads")) and "no sizes" in found.why


def test_what_is_left_to_make() -> None:
    assert to_make(unfetched(BILLION, drafters=(HEADS, PublishedDrafter("s3d")))) == "s3d"
    assert to_make(unfetched(BILLION, drafters=(HEADS, PublishedDrafter("ouroboros")))) is None


def test_whether_it_fits() -> None:
    fits, said = fit("org/name", CONFIG, 2 * BILLION.parameters, GPU, NoMeasurements())
    assert fits and wording("gib_that_may_be_taken") in said
    fits, said = fit("org/name", CONFIG, 2 * BILLION.parameters, machine(cpu(1.5)), NoMeasurements())
    assert fits is False and said.startswith(wording("org_name_does_not_fit_2"))
    beside = int(gpu(24).usable - 1.5 * BILLION.parameters)  # what is left holds the model in half its bytes at most
    assert fit("org/name", CONFIG, 2 * BILLION.parameters, GPU, NoMeasurements(), beside)[0]
    assert fit("org/name", CONFIG, 2 * BILLION.parameters, GPU, NoMeasurements(), gpu(24).usable)[0] is False


def test_a_config_that_promises_another_model_than_its_weights_are_is_not_believed() -> None:
    assert fit("org/name", CONFIG, 40 * 2**30, GPU, NoMeasurements())[0] is None
    assert fit("org/name", {**CONFIG, "hidden_size": "wide"}, 1, GPU, NoMeasurements())[0] is None
    assert LITTLE.parameters < module.SLACK
