"""The parts of our GPU kernels that run anywhere: the order of an NF4 matrix, and cases where they do not apply."""

import torch
from each import each
from golden import wording

from localspec.nn import kernel_checks, row_kernels


@each("out, blocks", [(16, 1), (40, 3), (301, 4)])
def test_each_level_and_scale_lies_where_a_thread_looks_for_it(out, blocks):
    packed = torch.randint(256, (out * blocks * 32, 1), dtype=torch.uint8)
    scales = torch.randint(256, (out * blocks,), dtype=torch.uint8)
    there, there_too = row_kernels.tiled(packed, scales, out)
    bytes_, by_channel = packed.view(out, blocks, 32), scales.view(out, blocks)
    for channel in {0, 7, 8, out // 2, out - 1}:
        for block in range(blocks):
            tile, half, g = channel // 16, channel % 16 // 8, channel % 8
            for thread in range(4):
                assert torch.equal(
                    there[tile, block, g, thread, half], bytes_[channel, block, 8 * thread : 8 * thread + 8]
                )
            assert there_too[tile, block, g, half] == by_channel[channel, block]
    again = row_kernels.untiled(there, there_too, out)
    assert torch.equal(again[0], packed) and torch.equal(again[1], scales)


def test_they_are_not_for_a_cpu():
    assert kernel_checks.trouble(torch.device("cpu")) == wording("they_nvidia_s_cards")
    assert not kernel_checks.serve(torch.ones(1))


class OnACard(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True


def test_they_are_not_for_what_wants_a_gradient(monkeypatch):
    """True of any operand: a norm may be trained whose input, the embedding of a token, is not."""
    monkeypatch.setattr(kernel_checks, "trouble", lambda device: None)
    x, weight = torch.ones(2).as_subclass(OnACard), torch.ones(2, requires_grad=True)
    assert kernel_checks.serve(x) and kernel_checks.serve(x, torch.ones(2))
    assert not kernel_checks.serve(weight.as_subclass(OnACard)) and not kernel_checks.serve(x, weight)
    with torch.no_grad():
        assert kernel_checks.serve(x, weight)
