"""GGUF files: `open` maps a model and checks it, `Writer` makes one."""

from edged.gguf.model import Model, describe, open
from edged.gguf.reader import TensorInfo
from edged.gguf.values import StringArray, Value
from edged.gguf.writer import Writer

__all__ = ["Model", "StringArray", "TensorInfo", "Value", "Writer", "describe", "open"]
