"""GGUF files: `open` maps a model and checks it, `Writer` makes one."""

from edged.gguf.model import Model, describe, open
from edged.gguf.reader import TensorInfo
from edged.gguf.values import StringArray, Value

__all__ = ["Model", "StringArray", "TensorInfo", "Value", "describe", "open"]
