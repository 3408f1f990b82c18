"""Reports of a bench with invented, possible figures."""

from reply_statistics import said

from localspec.bench import figures


def report(rows, **unlike):
    return {
        "machine": {"versions": "torch 2.13.0, Some Processor", "cores": 2, "memory": 2**34, "bandwidth": 61_700_000_000, "others": 0.0},
        "model": "demo", "device": "cpu", "dtype": "fp32", "quantize": "none", "exactness": "bitwise",
        "prompts": 2, "left_out": 0, "repeat": 1, "max_tokens": 64, "temperature": 0.0, "seed": 1, "pool": "off",
        "rows": list(rows), "peers": [], **unlike,
    }  # fmt: skip


def row(drafter, nodes, replies, kinds=("code", "chat")):
    plain = [said(seconds=1.0), said(seconds=1.0)]
    names = {"drafter": drafter, "nodes": nodes, "accept": "exact"}
    return {**names, **figures.of_row(replies, plain, list(kinds), 10**9, 61.7e9)}
