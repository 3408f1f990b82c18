"""How tokenizers in GGUF files split text before they merge tokens, by the name of the pre-tokenizer.

The names (`tokenizer.ggml.pre`) are those of llama.cpp's src/llama-vocab.cpp, as of November 2026. The regular
expressions are those of the models' own tokenizer.json. llama.cpp simplifies some of them:
`tests/weights/test_peer_ids.py` lists where its ids differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Split:
    """The regular expressions that split text, and other settings that all models with these expressions share.

    Each expression splits what the previous ones left. A match is not split further.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False  # a part that is a token is never merged from smaller tokens
    begins: bool = False  # texts begin with the begin-of-text token, unless the file says otherwise
    composed: bool = False  # text is normalised to NFC
    raw: bool = False  # tokens are spelled in UTF-8 with ▁ for a space, rather than in GPT-2's letters for bytes


DIGIT, DIGITS = r"\p{N}", r"\p{N}{1,3}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # which ByteLevel has built in
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_LLAMA3 = f"{_CONTRACTIONS}|{_WORDS}{DIGITS}{_SIGNS}{_SPACES}"
_QWEN2 = f"{_CONTRACTIONS}|{_WORDS}{DIGIT}{_SIGNS}{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACES}"
)
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
)
_WITH_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_TEKKEN = _CASED % ("", "") + DIGIT + _WITH_SLASHES
_GPT4O = _CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?") + DIGITS + _WITH_SLASHES
_YOUTU = _CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?") + DIGIT + _WITH_SLASHES
_MARKED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK3 = (DIGITS, _HAN_AND_KANA, _MARKED + r"[\r\n]*" + _SPACES)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES = r"[^\n]+|[\n]+"
_CASED_LETTERS = (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-"
    "\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-"
    "\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    "\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-"
    "\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-"
    "\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# Han is a part by itself, so the words of kimi-k2 leave it out.
_KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTIONS}?|{DIGITS}{_SIGNS}{_SPACES}"
)
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_THOUSANDS = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}"  # groups of three digits from the right
_BLANKS = "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
_KOREAN_AND_CHINESE = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_CHAMELEON = (
    "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]", GPT2,
)  # fmt: skip

_OF_LLAMA3 = Split((_LLAMA3,), whole_words=True, begins=True)
_OF_QWEN2 = Split((_QWEN2,), composed=True)
_OF_GEMMA4 = Split((_LINES,), raw=True)
_SEVERAL: Mapping[tuple[str, ...], Split] = {
    ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum", "modern-bert",
     "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"): Split((GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"):
        Split((DIGIT, GPT2)),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"):
        _OF_LLAMA3,
    ("dbrx", "smaug-bpe", "chatglm-bpe"): Split((_LLAMA3,)),
    ("glm4", "glm5"): Split((_LLAMA3,), whole_words=True),
    ("qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"): _OF_QWEN2,
    ("kormo", "stablelm2", "hunyuan", "solar-open", "grok-2"): replace(_OF_QWEN2, composed=False),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): Split((_GPT4O,)),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): Split(_DEEPSEEK3),
    ("bailingmoe", "bailingmoe2", "llada-moe"): Split((
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORDS}{DIGIT}{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    ("bloom", "poro-chat", "gpt3-finnish"): Split((_BLOOM,)),
    ("tiny_aya", "cohere2moe"): Split((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("gemma4", "granite-embed-multi-311m"): replace(_OF_GEMMA4, begins=True),
}  # fmt: skip
SPLITS: Mapping[str, Split] = {
    **{name: split for names, split in _SEVERAL.items() for name in names},
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "qwen35": Split((_QWEN35,), composed=True),
    "tekken": Split((_TEKKEN,), whole_words=True, begins=True),
    "granite-embed-multi-97m": Split((_GPT4O,), whole_words=True),
    "minicpm5": Split((DIGITS, rf"{_CONTRACTIONS}|{_WORDS}\p{{N}}+{_SIGNS}{_SPACES}"), whole_words=True),
    "jais-2": Split((rf"{_CONTRACTIONS}|{_WORDS}{DIGITS}{_SIGNS}|\s*[\r\n]+{_BLANKS}",)),
    "deepseek-llm": Split((
        r"[\r\n]", rf"\s?[A-Za-z{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", _HAN_AND_HANGUL, r"\p{N}+",
    )),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, DIGIT)),
    "spark2_5": Split((DIGITS, _HAN_AND_KANA, _MARKED + r"|[\r\n]|\s+(?!\S)|\s+", DIGIT)),
    "youtu": Split((_KOREAN_AND_CHINESE, _YOUTU), whole_words=True),
    "falcon": Split(_FALCON),
    "viking": Split((_BLOOM, DIGIT)),
    "chameleon": Split(_CHAMELEON, begins=True),
    "kimi-k2": Split((_KIMI,)),
    "superbpe": Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "seed-coder": Split((rf"{_CONTRACTIONS}|{_WORDS}{DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}",)),
    "ufakzeka": Split((f"{_WORDS}{DIGIT}{_SIGNS}{_SPACES}",)),
    "afmoe": Split((_THOUSANDS, _ASIAN, _MARKED + r"[\r\n]*" + _SPACES)),
    "laguna": Split((_LINES, _QWEN2)),
    "exaone-moe": Split((
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{DIGIT}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    "sarvam-moe": _OF_GEMMA4,
}  # fmt: skip
