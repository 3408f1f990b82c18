"""The phrases of earlier sessions with a model: read while one drafts, and kept after each reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from localspec.drafters.pool import PhrasePool
from localspec.events import Reporter
from localspec.models.registry import TargetCard, reference
from localspec.store.database import StoreTrouble
from localspec.store.phrases import Phrase
from localspec.store.store import Store


@dataclass(frozen=True)
class SavedPhrases:
    """The phrases in the store that belong to one model; they are only read unless `learn` is set."""

    store: Store
    pool_id: int
    learn: bool
    reporter: Reporter

    @classmethod
    def open(
        cls, store: Store, card: TargetCard, tokenizer: str, learn: bool, reporter: Reporter, earlier: str | None = None
    ) -> Self | None:
        """Return the phrases of a model; None without any if nothing may be kept, or if the store cannot be used.

        `tokenizer` names the tokenizer and the weights, which the tokens belong to, and `earlier` is how an earlier
        version named them; without it only a pool of the same name or place counts. Trouble with the store is reported.
        """
        try:
            pool_id = store.phrases.pool(reference(card), tokenizer, str(card.path), make=learn, earlier=earlier)
        except StoreTrouble as trouble:
            reporter.notice(str(trouble))
            return None
        return None if pool_id is None else cls(store, pool_id, learn, reporter)

    def read(self, keys: Sequence[int]) -> Sequence[Phrase]:
        """The phrases of some keys; a `PhraseReader`."""
        return self.store.phrases.look_up(self.pool_id, keys)

    def keep(self, pool: PhrasePool, start: int, conversation: int | None) -> bool:
        """Keeps what a reply that began at token `start` brought into the pool, if anything may be kept.

        Returns False where the store gave trouble, which is reported.
        """
        if not self.learn or self.store.read_only:
            return True
        try:
            self.store.phrases.learn(self.pool_id, *pool.harvest(start), conversation)
        except StoreTrouble as trouble:
            self.reporter.notice(str(trouble))
            return False
        return True
