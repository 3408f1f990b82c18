"""What is done about memory that ran out: how it is told from other errors, and what can be given back."""

import torch


def out_of_memory(error: BaseException) -> bool:
    """Torch has an error of its own for it on CUDA only."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        said in str(error) for said in ("can't allocate memory", "out of memory", "_ALLOC_FAILED")
    )


def give_back(device: torch.device) -> None:
    """Gives back what the allocator of a device holds and nobody uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
