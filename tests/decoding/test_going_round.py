"""The place where a text starts to repeat itself."""

from each import each

from localspec.repetition import until_it_goes_round


@each(
    "text, said",
    [
        ("the cat sat on the mat", "the cat sat on the mat"),
        ("the lion and the lion and the lion and the lion and", "the lion and"),
        ("so so so so so so so", "so"),
        ("very very very good", "very very very good"),
        ("a b c d a b c d", "a b c d a b c d"),
        ("once a b a b a b a", "once a b"),
        ("", ""),
    ],
)
def test_a_text_ends_where_it_goes_round(text: str, said: str) -> None:
    words = text.split()
    numbers = [sorted({*words}).index(word) for word in words]
    assert words[: until_it_goes_round(numbers)] == said.split()
