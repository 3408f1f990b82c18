"""The reasons for which a release is refused."""

import hashlib
import zipfile

import pytest
from release import TRIED, complaints, different, write_checksums

from localspec.native.build import TARGETS

CHANGELOG = "# Changelog\n\n## 1.2.3 · 2030-01-31\n\n- Something.\n\n## 1.2.2 · 2029-01-31\n"


def test_nothing_stands_in_the_way_of_a_release_that_is_ready():
    assert complaints("1.2.3", CHANGELOG, "") == []


@pytest.mark.parametrize(
    ("version", "changelog", "changes", "said"),
    [
        ("1.2.4", CHANGELOG, "", "CHANGELOG.md begins with 1.2.3, but the version is 1.2.4"),
        ("1.2.2", CHANGELOG, "", "CHANGELOG.md begins with 1.2.3, but the version is 1.2.2"),
        ("1.2.3", CHANGELOG.replace("2030-01-31", "unreleased"), "", "says that 1.2.3 is 'unreleased'"),
        ("1.2.3", "# Changelog\n", "", "has no entry"),
        ("1.2", CHANGELOG.replace("1.2.3", "1.2"), "", "has version '1.2'"),
        ("1.2.3", CHANGELOG, " M README.md", "no commit has:\n M README.md"),
    ],
)
def test_what_stands_in_the_way_is_reported(version, changelog, changes, said):
    (complaint,) = complaints(version, changelog, changes)
    assert said in complaint


def test_two_wheels_are_compared_by_what_is_in_their_files(tmp_path):
    wheels = [tmp_path / "one.whl", tmp_path / "other.whl"]
    for wheel, names in zip(wheels, ("abc", "abd"), strict=True):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                archive.writestr(name, wheel.name if name == "b" else "same")
    assert different(*wheels) == ["b", "c", "d"]
    assert different(wheels[0], wheels[0]) == []


def test_checksums_are_of_what_is_handed_out_and_nothing_else(tmp_path):
    for name in ("b.whl", "a.tar.gz", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path)
    sums = [hashlib.sha256(name.encode()).hexdigest() for name in ("a.tar.gz", "b.whl")]
    assert (tmp_path / "SHA256SUMS").read_text() == f"{sums[0]}  a.tar.gz\n{sums[1]}  b.whl\n"


def test_only_targets_are_said_to_have_been_tried():
    assert {*TRIED} <= {*TARGETS}
