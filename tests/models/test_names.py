"""Names of models as people type them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from each import each
from golden import matching
from properties import example, given, st

from localspec.choosing.named import named_drafter
from localspec.cli.main import main
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.hub.sources import Source
from localspec.models import registry
from localspec.models.names import full_name, name_in_prompt
from localspec.models.registry import TargetCard

SMOL, HALF, WHOLE = (
    "SmolLM2-135M-Instruct.Q4_1",
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M",
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M",
)
Enter = Callable[..., None]


@pytest.fixture
def enter(fresh_home: Path, tmp_path: Path) -> Enter:
    """enter(name, …): models of these names are here; each `same` is another name of the first one's files."""

    def enter(*found: str, same: str = "") -> None:
        lines = []
        for name in found:
            if not (tmp_path / name).exists():
                (tmp_path / name).symlink_to(registry.resolve("demo").path)
            lines.append(f'["{name}"]\npath = "{tmp_path / name}"\n')
        if same:
            lines.append(f'["{same}"]\npath = "{tmp_path / found[0]}"\n')
        (fresh_home / "config").mkdir(parents=True, exist_ok=True)
        (fresh_home / "config" / "models.toml").write_text("".join(lines))

    return enter


@each(
    "typed, meant",
    [
        (SMOL, SMOL), ("smol", SMOL), ("SMOLLM2", SMOL), (SMOL.lower(), SMOL), ("s", SMOL),
        ("SmolLM2-135M-Instruct.Q4_1:latest", SMOL), ("smollm2:latest", SMOL),
        ("qwen2.5-coder-0", HALF), ("QWEN2.5-CODER-1.5B-I", WHOLE), ("Demo", "demo"), ("demo", "demo"),
        ("demo:latest", "demo"), ("demo-d", "demo-draft"), ("nothing-like-it", "nothing-like-it"), ("", ""),
        ("org/repo", "org/repo"), ("hf.co/Org/repo", "Org/repo"), ("~/smol", "~/smol"), ("smol\0", "smol\0"),
    ],
)  # fmt: skip
def test_a_name_is_found_by_its_beginning_in_any_case(enter, typed, meant):
    enter(SMOL, HALF, WHOLE)
    assert full_name(typed) == meant


def test_a_prefix_of_several_is_refused_with_their_names(enter):
    enter(SMOL, HALF, WHOLE)
    with pytest.raises(UsageMistake, match=matching("qwen_could_any_type_more_name", half=HALF, whole=WHOLE)):
        full_name("qwen")


def test_an_exact_name_wins_over_those_that_continue_from_it(enter):
    enter("qwen", "qwen-coder", "Qwen-max")
    assert full_name("qwen") == "qwen" == full_name("QWEN")


def test_two_names_of_the_same_files_are_one_candidate(enter):
    enter(SMOL, same="smollm2-135m-again")
    assert full_name("smol") == SMOL
    assert full_name("smollm2-135m-a") == "smollm2-135m-again"


def test_a_model_that_is_not_here_is_no_candidate_and_named_where_there_is_no_other(enter):
    enter(SMOL)
    assert full_name("smollm") == SMOL  # though smollm3-3b is registered
    with pytest.raises(NotHere, match=matching("begins_with_smollm3_localspec_pull_smollm3")):
        full_name("smollm3")
    assert full_name("smollm3-3b") == "smollm3-3b"  # `resolve` reports what is wrong with it


def test_a_directory_comes_before_a_beginning(enter, tmp_path, monkeypatch):
    enter(SMOL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smol").mkdir()
    assert full_name("smol") == "smol"


def test_show_and_a_draft_model_take_a_unique_prefix(enter, capsys):
    enter(SMOL, HALF, WHOLE)
    assert main(["show", "smol"]) == 0
    assert capsys.readouterr().out.split("\n")[0].split() == ["name", SMOL]
    spec = named_drafter("draft_model:smol", registry.resolve(WHOLE))
    assert spec.small is not None and spec.small.card.name == SMOL
    with pytest.raises(UsageMistake, match=matching("qwen_could_any_type_more_name", half=HALF, whole=WHOLE)):
        named_drafter("draft_model:qwen", registry.resolve(SMOL))


def test_a_hint_names_a_model_that_is_here_before_others(enter):
    enter(SMOL)
    with pytest.raises(NotHere, match=re.escape(f"(did you mean {SMOL!r}?)")):
        registry.resolve("smollm")  # though smollm3-3b is shorter


@each(
    "word, meant",
    [("smol", SMOL), ("SMOLLM2", SMOL), ("sm", None), ("Hello", None), ("smol talk", None), ("qwen", None), ("", None)],
)
def test_a_prompt_of_one_word_may_have_meant_a_model(enter, word, meant):
    enter(SMOL, HALF, WHOLE)
    assert name_in_prompt(word) == meant


@pytest.mark.slow
@example([".0Bb"], ".0BB")
@given(
    st.lists(st.text("abAB.-0", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.text("abAB.-0", max_size=5),
)
def test_what_is_found_begins_as_was_typed_and_nothing_else_does(found: list[str], typed: str) -> None:
    cards = {name: TargetCard(name, Path("/nowhere") / f"{at}", None, "") for at, name in enumerate(found)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "cards", lambda _=None: cards)
        patch.setattr(registry, "known", lambda _=None: cards)
        patch.setattr(registry.os.path, "lexists", lambda _: False)
        begun = [name for name in found if name.lower().startswith(typed.lower())]
        same = [name for name in found if name.lower() == typed.lower()]
        try:
            meant = full_name(typed)
        except LocalspecError:
            assert len(begun) > 1 and typed not in found and len(same) != 1
            return
    if typed in found or not typed:
        assert meant == typed
    elif len(same) == 1:
        assert meant == same[0]
    elif typed.startswith("."):
        assert meant == typed
    else:
        assert meant == (begun[0] if begun else typed)


@each(
    "typed, source",
    [
        ("hf.co/org/repo", "org/repo"),
        ("hf.co/org/repo-GGUF:Q4_K_M", "org/repo-GGUF:Q4_K_M"),
        ("https://hf.co/org/repo", "org/repo"),
        ("huggingface.co/org/repo", "org/repo"),
        ("https://huggingface.co/org/repo", "org/repo"),
        ("HTTPS://HuggingFace.co/Org/Repo/", "Org/Repo"),
        ("https://huggingface.co/org/repo/tree/main", "org/repo"),
        ("https://huggingface.co/org/repo/tree/v1.0", "org/repo@v1.0"),
        ("https://huggingface.co/org/repo?library=transformers", "org/repo"),
        ("https://huggingface.co/org/repo/blob/main/README.md", "org/repo"),
        ("https://huggingface.co/org/R-GGUF/blob/main/r-1.5b-q4_k_m.gguf", "org/R-GGUF:Q4_K_M"),
        ("https://huggingface.co/org/R-GGUF/resolve/main/R.Q8_0.gguf?download=true", "org/R-GGUF:Q8_0"),
        ("https://huggingface.co/org/R/blob/main/BF16/R-BF16-00001-of-00003.gguf", "org/R:BF16"),
    ],
)
def test_addresses_of_the_hub_are_sources(typed, source):
    assert str(Source.parse(typed)) == source


@each("typed", ["hf.co/org", "https://huggingface.co/", "https://example.com/org/repo", "hf.co/a/b/c"])
def test_other_addresses_are_no_names(typed):
    with pytest.raises(UsageMistake, match=matching("names_repository_hub")):
        Source.parse(typed)
