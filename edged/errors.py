"""Every error edged raises on purpose.

Each carries a stable machine-readable ``code``, a ``message`` that names the cause, and a ``hint`` that says what to
do about it (may be empty). Libraries raise these; only the CLI prints them and only `api` turns them into HTTP.
"""

from __future__ import annotations


class EdgedError(Exception):
    """Base of all named errors.

    `code` is stable across releases, `message` names the cause with its numbers, `hint` names the remedy.
    """

    code = "internal"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BadModel(EdgedError):
    """A model file is malformed, unsupported or incomplete. The message names the key or the tensor."""

    code = "bad_model"


class ModelChanged(EdgedError):
    """The mapped model file was changed or truncated in place."""

    code = "model_changed"


class ModelFault(EdgedError):
    """The model produced NaN or infinite logits; only the request concerned fails."""

    code = "model_fault"


class BadTemplate(EdgedError):
    """The model's chat template cannot be compiled or rendered, or refused the messages."""

    code = "bad_template"


class BadKernels(EdgedError):
    """No usable kernel library: missing level, other ABI, or the processor refuses it."""

    code = "bad_kernels"


class BadConfig(EdgedError):
    """A configuration key, environment variable or flag has a wrong value. The message names it."""

    code = "bad_config"


class BadRequest(EdgedError):
    """A request is malformed or asks for what cannot be done. `param` names the field, where there is one."""

    code = "bad_request"

    def __init__(self, message: str, *, param: str | None = None, hint: str = "", code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.param = param


class ContextFull(BadRequest):
    """Prompt (and requested tokens) do not fit the context. The message carries both numbers."""

    code = "context_length_exceeded"


class NotFound(EdgedError):
    """Something named does not exist: a model, a route, a file."""

    code = "not_found"


class Busy(EdgedError):
    """The queue is full; `retry_after` is in seconds."""

    code = "busy"

    def __init__(self, message: str, *, retry_after: int = 1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class NotReady(EdgedError):
    """The daemon is still loading or is stopping."""

    code = "not_ready"


class DownloadFailed(EdgedError):
    """A model could not be fetched or its SHA-256 does not match."""

    code = "download_failed"


class BadDocument(EdgedError):
    """A document cannot be read: broken, protected, too large, or of another format than its name says."""

    code = "bad_document"


class LimitTooLow(EdgedError):
    """An operating-system limit (locked memory, address space, open files) is too low. Carries needed and allowed."""

    code = "limit_too_low"


class BadStore(EdgedError):
    """The store of manuals is damaged, of another version, or was filled by another embedding model."""

    code = "bad_store"


class OtherStore(BadStore):
    """The store of manuals is whole, but of another version or another program, or another model filled it."""

    code = "other_store"


class DiskFull(EdgedError):
    """There is no room to write a file. The message names it; what was there before is as it was."""

    code = "disk_full"


class LinkFailed(EdgedError):
    """A device on a serial line does not answer (code link_lost), or refused or ended what was asked."""

    code = "link_lost"
