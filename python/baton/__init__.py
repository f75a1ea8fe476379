"""Baton's sidecars inside Python.

``baton.sglang`` is what ``--sidecar`` of SGLang takes; ``baton.attach`` is for users of TensorRT-LLM's ``LLM`` without HTTP
server.
"""
