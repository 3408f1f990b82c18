"""Memory that is held for the backward pass, counted where torch saves it."""

import torch

from localspec.training.trainable import Batch, TrainableDrafter


def gradients_and_bytes(drafter: TrainableDrafter, batch: Batch) -> tuple[dict[str, torch.Tensor], int]:
    """Return the gradients of a loss by name, and the bytes that it held before, weights not counted."""
    weights = {one.untyped_storage().data_ptr() for one in drafter.target.transformer.parameters()}
    weights |= {one.untyped_storage().data_ptr() for one in drafter.parameters()}
    held: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = drafter.loss(batch).loss
    count = sum(held.values())
    loss.backward()
    return {name: one.grad for name, one in drafter.named_parameters() if one.grad is not None}, count
