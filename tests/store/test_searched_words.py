"""Search finds words in any spelling, and reports their places in the text as it was written."""

import unicodedata

from each import each

from localspec.store.searched_words import fold, span


@each(
    "word, text, found",
    [
        ("sea", "The SEA.", "SEA"),
        ("café", "ein Cafe\u0301 hier", "Cafe\u0301"),
        ("cafe\u0301", "ein CAFÉ hier", "CAFÉ"),
        ("cafe", "ein Cafe\u0301 und cafe", "cafe"),
        ("hier", "Cafe\u0301 e\u0301 hier.", "hier"),
        ("STRASSE", "Große Straße?", "Straße"),
        ("stras", "Straße", "Straß"),
        ("se", "Straße", "ße"),
        ("straße", "STRASSE", "STRASSE"),
        ("find", "ﬁnden", "ﬁnd"),
        ("istanbul", "in İstanbul", "İstanbul"),
        ("ılık", "ILIK", "ILIK"),
        ("각", unicodedata.normalize("NFD", "가 각"), unicodedata.normalize("NFD", "각")),
        ("x2", "x²", None),
        ("...", "…", None),
    ],
)
def test_where_a_word_stands(word, text, found):
    hit = span(fold(word), text)
    assert (text[slice(*hit)] if hit else None) == found
