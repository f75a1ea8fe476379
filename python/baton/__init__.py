"""Baton's sidecars inside Python.

``baton.attach`` is for users of TensorRT-LLM's ``LLM`` without HTTP server; ``baton.sglang`` is what ``--sidecar`` of SGLang
takes.
"""

from baton._attach import Attachment, attach

__all__ = ["Attachment", "attach"]
