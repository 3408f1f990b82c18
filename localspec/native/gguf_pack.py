"""A model in GGUF files, packed: the same parameters, from other blocks."""

from pathlib import Path

from localspec.checkpoint import Checkpoint
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.gguf.file import damaged
from localspec.gguf.model import GgufModel, GgufTensor
from localspec.models.architecture import TransformerConfig, weight_map
from localspec.models.model_config import least_parameters
from localspec.models.packed_files import in_all_formats
from localspec.models.rope import Rope
from localspec.models.stored_weights import StoredTensor
from localspec.models.tokenizer import Tokenizer
from localspec.models.weight_digests import stamps
from localspec.native.pack import Recipe, Source
from localspec.native.packed_cache import once, packing_told, write_with_room
from localspec.packed_file import Origin
from localspec.paths import Paths


def pack_gguf(model: GgufModel, packing: str, origin: Origin, threads: int, reporter: Reporter, paths: Paths) -> Path:
    """Returns the packed file of a model, which is made where there is none; all that is kept of it.

    Raises what `gguf_source` and `once` raise, and LocalspecError where the files change meanwhile.
    """
    files = [part.path for part in model.parts]
    before, source = stamps(files), gguf_source(model)
    header = source.header(origin, packing, gguf_recipe(source, packing))

    def make(file: Path) -> None:
        write_with_room(file, header, source.filler({}), threads, packing_told(origin.name, packing, reporter))
        if stamps(files) != before:
            file.unlink(missing_ok=True)
            raise LocalspecError(f"{model.path} changed while it was read; try again.")

    return once(in_all_formats(origin, packing, paths, only_copy=True), make, reporter)


def gguf_source(model: GgufModel) -> Source:
    """Looks at headers, and tries the tokenizer. Raises LocalspecError for what cannot be computed."""
    config = model.config
    if least_parameters(config) > model.parameters:
        raise damaged(model.path, f"it promises {config.num_hidden_layers} layers and has {model.parameters} weights")
    sizes = TransformerConfig.of(config)
    Rope.of(config, config.contexts[0])
    stored = model.tensors(sizes)
    made_of: dict[str, list[StoredTensor]] = {
        name: [stored[part] for part, _ in parts] for name, parts in weight_map(sizes).items()
    }
    made_of.setdefault("lm_head.weight", made_of["embed_tokens"])
    Tokenizer.decoded(model.texts, model.path)
    files = tuple(part.path for part in model.parts)
    architecture = str(config.content["architectures"][0])
    checkpoint = Checkpoint(model.path, config.content, architecture, files, model.parameters, model.size)
    return Source(checkpoint, config, sizes, made_of, model.texts)


def gguf_recipe(source: Source, packing: str) -> Recipe:
    """As any model is packed, but that the groups of 32 of Q8_0 stay: packing finds their scales again, bit for bit."""
    kept = (name for name, parts in source.made_of.items() if all(_is_q8_0(part) for part in parts))
    return Recipe.of(packing, frozenset(kept))


def _is_q8_0(part: object) -> bool:
    return isinstance(part, GgufTensor) and part.block.name == "Q8_0"
