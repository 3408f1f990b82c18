"""Which form of a model a pull takes, and what that makes of the download that is told."""

from dataclasses import replace

from each import each
from machines import BILLION, cpu, gpu, machine, unfetched

from localspec.hub.sources import Source
from localspec.models.entries import Entry, Form, PublishedDrafter
from localspec.models.model import model_of
from localspec.policy.forms import form_bytes, original_bytes, suited_form
from localspec.policy.measurements import NoMeasurements
from localspec.policy.survey import recommend

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


def test_doctor_tells_the_download_that_a_pull_would_take():
    card = replace(unfetched(BILLION), entry=ENTRY)

    def told(*devices):
        return recommend(model_of(card), machine(*devices), NoMeasurements(), here=False).to_fetch.bytes

    assert told(cpu(24)) == 1000 and told(gpu(24)) == 2 * BILLION.parameters
