"""Arguments that each command refuses: exit code and words of the one sentence. Nothing is loaded or left on disk."""

import shlex

import pytest
from command import called, sentence
from each import each
from golden import wording
from slow_cases import cases

ANY = [
    ("lst", 2, "'list'"),
    ("zzz", 2, "--help"),
    ("--versoin", 2, "--version"),
    ("list --jsn", 2, "--json"),
    ("list extra", 2, "extra"),
    ("show", 2, "name"),
    ("show dmo", 3, "'demo'"),
    ("pool x", 2, "No such command"),
    ("pool lst", 2, "'list'"),
    ("'bad\x1b[31m\nname'", 2, r"bad\x1b[31m\nname"),
    ("history list --limit some", 2, "'some' must be a whole number"),
    ("history list --limit abc", 2, wording("abc_must_whole_number_give")),
    ("bench --limit 0", 2, wording("n0_must_1_more_give_another_value").replace("'", "")),
    ("history list --limit 0", 2, "0 must be 1 or more"),
    ("history show abc", 2, "'abc'"),
    ("serve --port http", 2, "'http' must be a whole number"),
    ("run two words more", 2, wording("words_more_put_quotation_marks")),
    ("race two words more", 2, wording("words_more_put_quotation_marks")),
    ("chat two words more", 2, wording("words_more_put_quotation_marks")),
    ("create", 2, "`localspec import"),
    ("search", 2, "`localspec history search"),
    ("stop", 2, "`localspec ps"),
    ("delete", 2, "`localspec rm"),
    ("remove", 2, "`localspec rm"),
    ("race '  '", 2, wording("there_is_no_prompt_2")),
    ("run -m dmo hi", 3, "'dmo'", "'demo'"),
    ("run -m meta/llama hi", 3, "'meta/llama'"),
    ("run -m '' hi", 2, "--model"),
    ("run -c --conversation 3 hi -m demo", 2, "--continue", "--conversation 3"),
    ("run --conversation last hi -m demo", 2, "'last' is not the number of a conversation", "history list"),
    ("bench -m dmo", 3, "'demo'"),
    ("train medusa -m dmo --data a.txt", 3, "'demo'"),
]
RUN = [
    ("--temp -1", 2, "--temperature -1"),
    ("--temp nan", 2, "--temperature nan"),
    ("--temp 9999", 2, "--temperature 9999", "100"),
    ("--temp hot", 2, "--temperature", "'hot'", wording("number_from_0_100")),
    ("--top-p 0", 2, "--top-p 0"),
    ("--top-p 1.5", 2, "--top-p 1.5"),
    ("--top-k -1", 2, "--top-k -1"),
    ("--min-p 2", 2, "--min-p 2"),
    ("--seed -3", 2, "--seed -3"),
    (f"--seed {2**63}", 2, "--seed", str(2**63), wording("whole_number_from_0")),
    ("-n 0", 2, "--max-tokens 0"),
    ("-n many", 2, "--max-tokens", "'many'", wording("whole_number_from_1_up")),
    ("-n 1.5", 2, "--max-tokens 1.5"),
    ("--context 0", 2, "--context 0"),
    ("--context 2000", 2, "2000", "1024"),
    ("--context 4", 2, "4", "tokens", "shorten"),
    ("--context long", 2, "long"),
    ("--threads 0", 2, "--threads 0"),
    ("--threads 100000", 2, "--threads 100000", "here; give fewer"),
    ("--stop ''", 2, "--stop"),
    ("--temprature 1", 2, "--temprature", "--temperature"),
    ("--no-sepc", 2, "--no-sepc", "--no-spec"),
    ("--json --stream-json", 2, "--json", "--stream-json"),
    ("--no-spec --drafter phrases", 2, "--no-spec", "--drafter phrases"),
    ("--no-spec --draft-max 4", 2, "--draft-max 4"),
    ("--no-spec --pool user", 2, "--pool user"),
    (f"--draft-max {2**63}", 2, "--draft-max", wording("auto_whole_number_from_0")),
    ("--draft-max 0 --pool readonly", 2, "--pool readonly"),
    ("--draft-max 0 --drafter phrases", 2, wording("drafter_phrases_effect_draft_max")),
    ("--draft-max lots", 2, "--draft-max", "lots"),
    ("--draft-max -1", 2, "--draft-max", "-1"),
    (f"--draft-max {'9' * 5000}", 2, "--draft-max inf"),
    ("--draft-max 65", 2, "--draft-max 65", "64"),
    ("--drafter medusaa", 2, "medusaa", "phrases"),
    ("--drafter ''", 2, "--drafter"),
    ("--pool of", 2, "--pool", "of"),
    ("--top-p 0.5 --temp 0", 2, "--top-p", "temperature 0"),
    ("--top-k 5 --temp 0", 2, "--top-k", "temperature 0"),
    ("--dtype fp16 --device cpu", 2, "fp16"),
    ("--dtype fp8 --device cpu", 2, "--dtype", "fp8"),
    ("--device cuda:99", 2, "cuda:99", "cpu"),
    ("--device gpu", 2, "--device", "gpu"),
    ("--quantize nf4 --device cpu", 2, wording("nf4_is_for_nvidia_s_gpus")),
    ("there", 2, "there"),
]
BENCH = [
    ("--prompts nowhere.jsonl", 2, "nowhere.jsonl"),
    ("--drafter phrases --nodes 0", 2, "--nodes 0", wording("plain_decoding_measured_any_case")),
    ("--nodes 4,65", 2, "--nodes 65", "64"),
    ("--nodes four", 2, "--nodes four"),
    ("--nodes 4,", 2, "--nodes '4,'"),
    ("--nodes ''", 2, "--nodes ''", "has an empty entry"),
    ("--drafter ''", 2, "--drafter ''", "has an empty entry"),
    ("--prompts ''", 2, wording("name_file")),
    ("--drafter phrases,fancy", 2, "fancy"),
    ("--drafter ,", 2, "--drafter"),
    ("--drafter 'phrases,medusa, phrases'", 2, "lists phrases twice"),
    ("--drafter phrases --nodes 4,4", 2, "--nodes 4,4 lists 4 twice"),
    ("--drafter none --nodes 4", 2, "--nodes 4", "no effect"),
    ("--limit 0", 2, "--limit"),
    ("--repeat 0", 2, "--repeat"),
    ("--max-tokens 0", 2, "--max-tokens"),
    ("--temp -1", 2, "--temperature -1"),
    ("--temp warm", 2, "--temperature 'warm'"),
    ("--seed 1.5", 2, "--seed 1.5"),
    ("--device cuda:99", 2, "cuda:99"),
    ("--plot drawn.jpg", 2, "drawn.jpg", ".svg"),
]
DOCTOR = [
    ("--prove dmo", 3, "'dmo'", "'demo'"),
    ("--prove demo --limit 0", 2, "--limit", "1"),
    ("--prove demo --limit some", 2, "--limit", "whole number"),
    ("--prove demo --max-tokens 0", 2, "--max-tokens", "1"),
    ("--prove demo --drafter medusaa", 2, "medusaa", "phrases"),
    ("--prove demo --drafter none", 2, "--drafter"),
    ("--prove demo --draft-max 0", 2, "--draft-max"),
    ("--prove demo --draft-max 65", 2, "65", "64"),
    ("--prove demo --device cuda:99", 2, "cuda:99"),
    ("--prove demo --dtype fp8", 2, "fp8"),
    ("--prove demo --context 5000000", 2, "5000000"),
    ("--prove", 2, "--prove"),
    ("--exact", 2, "--exact"),
    ("--prove demo --prefer speed", 2, "--prefer speed", "--prove"),
    ("--limit 3", 2, "--limit 3", "--prove MODEL"),
    ("--max-tokens 3", 2, "--max-tokens 3", "--prove MODEL"),
    ("--drafter phrases", 2, "--drafter phrases", "--prove MODEL"),
    ("--quantize int8", 2, "--quantize int8", "--prove MODEL"),
    ("demo", 2, "demo"),
]
TRAIN = [
    ("medussa", 2, "'medussa'", wording("did_you_mean_medusa_2"), "parallelspec, s3d, semi"),
    ("phrases", 2, "'phrases'", "medusa"),
    ("medusa -O hedas=2", 2, "'hedas'", wording("did_you_mean_heads")),
    ("medusa -O heads=two", 2, "heads = 'two'", "whole number"),
    ("medusa -O heads=2.5", 2, "heads = '2.5'", "whole number"),
    ("medusa -O joint=maybe", 2, "joint = 'maybe'", "true or false"),
    ("medusa -O heads=99", 2, "heads = 99"),
    ("medusa -O heads", 2, "'heads'", "NAME=VALUE"),
    ("medusa -O heads=2 -O heads=3", 2, "heads", "twice"),
    ("medusa --hours 0", 2, "--hours 0"),
    ("medusa --epochs -1", 2, "--epochs -1"),
    ("medusa --lr nan", 2, "--lr nan"),
    ("medusa --steps 0", 2, "--steps"),
    ("medusa --labels hard", 2, "--labels"),
    ("medusa --at-once 257", 2, "--at-once 257", "256"),
    ("medusa --length 99999", 2, "--length 99999"),
    ("medusa --length 7", 2, "7 must be 8 or more"),
    ("medusa --device cuda:99", 2, "cuda:99"),
    ("medusa --quantize nf4 --device cpu", 2, wording("nf4_is_for_nvidia_s_gpus")),
    (f"medusa --seed {'9' * 23}", 2, "--seed"),
    (f"medusa --steps 1{'0' * 400}", 2, "--steps"),
    (f"medusa --batch 1{'0' * 400}", 2, "--batch"),
    ("medusa --hours 1e308", 2, "--hours 1e+308"),
    ("medusa --epochs 1e308", 2, "--epochs 1e+308"),
    ("s3d -O full=true --dtype fp16 --quantize none", 2, "fp16", "bf16", "fp32"),
]
DATA = [("gone.txt", 2, "cannot be read"), ("empty.txt", 2, "has no text"), ("binary.txt", 2, "UTF-8")]
RACE = [
    ("--drafter none", 2, "needs a drafter"),
    ("--draft-max 0", 2, "--draft-max 0 turns them off"),
    ("--cast nowhere/a.cast", 2, "nowhere/a.cast"),
    ("--drafter fancy", 2, "fancy"),
    ("--temp warm", 2, "--temperature 'warm'"),
]
DISTILL = [
    ("", 2, "-o"),
    ("--prompts text.txt", 2, "-o"),
    ("-o a", 2, "-o"),
    ("--prompts text.txt -o .", 2, "-o"),
    ("--prompts text.txt -o no/a", 2, "-o"),
    (f"--prompts text.txt -o {'x' * 300}", 2, "-o"),
    ("--prompts text.txt -o a --temp -1", 2, "--temperature -1"),
    ("--prompts text.txt -o a --seed 1.5", 2, "--seed 1.5"),
    ("--prompts text.txt -o a --batch 0", 2, "--batch"),
    ("--prompts empty.txt -o a", 2, "has no prompts"),
    ("--prompts unlike.jsonl -o a", 2, wording("there_is_no_prompt")),
    ("--prompts broken.jsonl -o a", 2, "line 2"),
]
FILES = {
    "text.txt": b"the cat sat on the mat and the dog sat on the log\n\n" * 200,
    "empty.txt": b"",
    "binary.txt": b"\xff\xfe\xff",
    "unlike.jsonl": b'{"text": "a"}',
    "broken.jsonl": b'{"prompt": "a"}\nno',
}
TRAINING = "train -m MODEL -o out --batch 256 --length 128"
COMMANDS = {
    "": ANY,
    "run -m demo --no-log hi": RUN,
    "bench -m demo": BENCH,
    "doctor": DOCTOR,
    f"{TRAINING} --data text.txt": TRAIN,
    f"{TRAINING} medusa --data": DATA,
    "race Hello -m demo": RACE,
    "distill -m demo": DISTILL,
}


@pytest.mark.parametrize("command", cases(COMMANDS, [command for command in COMMANDS if "MODEL" not in command]))
def test_a_mistake_is_one_sentence_with_its_exit_code_and_leaves_nothing(tmp_path, monkeypatch, request, command):
    for place in ("bench.comparison.Engine", "training.job.Training", "bench.race.Lane"):
        monkeypatch.setattr(f"localspec.{place}", lambda *_, **__: pytest.fail("it went on"))
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    model = "demo"
    if "MODEL" in command:
        model = str(request.getfixturevalue("tiny")("phi3-grouped-window-partial-rotary").path)
    for arguments, code, *words in COMMANDS[command]:
        result = called(tmp_path, *shlex.split(f"{command} {arguments}".replace("MODEL", model)))
        told = sentence(result)
        assert result.returncode == code, (arguments, told)
        assert [word for word in words if word not in told] == [], (arguments, told)
        assert "Unexpected" not in told and "Input should" not in told and "\x1b" not in told, told
        packed = {"cache"}  # a model that is loaded is packed once
        assert {path.name for path in tmp_path.iterdir()} - packed == FILES.keys(), arguments


@each("typed", ["create-model", "remember", "virus", "create", "delete"])
def test_a_distant_command_is_not_suggested(tmp_path, typed):
    assert wording("did_you_mean") not in sentence(called(tmp_path, typed))
