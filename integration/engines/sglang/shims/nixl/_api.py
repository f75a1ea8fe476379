"""Calls host memory by its name: SGLang's NIXL backend registers KV buffers as "VRAM" wherever they are.

Without a GPU they are in host memory, which NIXL's UCX backend refuses under that name. This is NIXL's own agent with
the name put right; registration, descriptors and transfers are NIXL's.
"""

from nixl_cu13._api import *  # noqa: F403
from nixl_cu13._api import nixl_agent as _Agent

_ON_A_DEVICE = ("VRAM", "cuda")


def _where_it_is(mem_type):
    return "DRAM" if mem_type in _ON_A_DEVICE else mem_type


class nixl_agent(_Agent):
    def register_memory(self, reg_list, mem_type=None, *args, **kwargs):
        return super().register_memory(reg_list, _where_it_is(mem_type), *args, **kwargs)

    def get_xfer_descs(self, descs, mem_type=None, *args, **kwargs):
        return super().get_xfer_descs(descs, _where_it_is(mem_type), *args, **kwargs)

    def get_reg_descs(self, descs, mem_type=None, *args, **kwargs):
        return super().get_reg_descs(descs, _where_it_is(mem_type), *args, **kwargs)

    def prep_xfer_dlist(self, agent_name, xfer_list, mem_type=None, *args, **kwargs):
        return super().prep_xfer_dlist(agent_name, xfer_list, _where_it_is(mem_type), *args, **kwargs)
