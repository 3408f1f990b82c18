"""Chat templates and tokenizers read from a model's files equal those of the loaded model, packed or not."""

from localspec.events import Reporter
from localspec.models.chat_tokenizer import chat_files
from localspec.models.registry import resolve
from localspec.native.target import NativeTarget
from localspec.paths import Paths
from localspec.weights.checkpoint import revision
from localspec.weights.opening import make
from localspec.weights.packed_file import Origin


def test_a_directory_and_its_packed_file_are_spoken_with_as_the_loaded_model_is(tmp_path):
    path = resolve("demo").path
    packed = make(path, "int8", Origin("demo", revision(path)), 1, Reporter(), Paths(tmp_path))
    target = NativeTarget.open(packed)
    said = [{"role": "user", "content": "Hello — you?"}]
    assert target.generation
    for place in (path, packed):
        chat, generation = chat_files(place)
        assert generation == target.generation and chat.render(said) == target.chat.render(said)
        assert chat.tokenizer.encode("naïve") == target.chat.tokenizer.encode("naïve")
