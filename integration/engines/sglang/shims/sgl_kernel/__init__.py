"""Stands in for SGLang's compiled kernels, of which no build for CPUs is published: not SGLang's code.

SGLang on a CPU without AMX computes with torch alone, but imports names from this package as it starts, and calls
two of them: `assign_req_to_token_pool_cpu` and `copy_all_layer_kv_cache_cpu`. Those are here. Every other name can
be imported and raises when it is called, so nothing is computed by something that is not there.
"""

import ctypes

# The release whose names these are.
__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, _stride):
    """Notes for each request of a batch where the KV of its new tokens is."""
    taken = 0
    for request, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist()):
        places = out_cache_loc[taken : taken + last - first]
        req_to_token[request, first:last] = places.to(req_to_token.dtype)
        taken += last - first


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Moves rows inside every layer's buffer; all are read before one is written, since places may overlap."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for buffer, row_bytes in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(buffer + source * row_bytes, row_bytes) for source in sources]
        for target, row in zip(targets, rows):
            ctypes.memmove(buffer + target * row_bytes, row, row_bytes)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"{name} is not among the kernels that are stood in for")

    absent.__name__ = name
    return absent
