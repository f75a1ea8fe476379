"""NIXL's own bindings, under the name that SGLang looks for: it tells errors of a dead peer from others by their types."""

from nixl_cu13._bindings import *  # noqa: F403
