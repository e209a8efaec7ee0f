"""The error family, drawn as a tree.

    HeadraceError
      ConfigError                a setting or a model folder is wrong: the process does not start
        ModelLoadError
      TemplateRefusal            a chat template cannot render its messages (text/chat_template.py)
      RequestError               a request is refused or fails; becomes an OpenAI error body
        InvalidRequest           400
          AdapterError           a LoRA adapter's folder cannot be served
          UnsupportedParameter
          ContextLengthExceeded
          TrainingDiverged         a fine-tuning job's loss is no number any more
        AuthenticationFailed     401
        HostNotAllowed           403
        PermissionDenied         403
        NotFound                 404
          ModelNotFound
        MethodNotAllowed         405
        BodyTimeout              408
        PayloadTooLarge          413
        UnsupportedMediaType     415
        RateLimited              429
        ServerError              500
        Unavailable              503
          Overloaded
          StorageUnavailable
        StorageFull              507

Raise these for the world's faults and assert for ours. A message may be shown to the client: it holds no path,
no address and no traceback.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Root of the family."""


class ConfigError(HeadraceError):
    """A setting is wrong; the message names it and the reason. Raised at start-up only."""


class ModelLoadError(ConfigError):
    """A model folder cannot be served; the message names the file, weight or field."""


class RequestError(HeadraceError):
    """One request is refused or fails.

    `status` is the HTTP status, `error_type` OpenAI's `type`, `code` its `code` (a string or None) and `param`
    the field at fault (or None).
    """

    status = 500
    error_type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """The request is wrong as written; the same request can never succeed."""

    status = 400
    error_type = "invalid_request_error"


class AdapterError(InvalidRequest):
    """A LoRA adapter cannot be served; the message names the file in its folder, and the field or the tensors."""

    code = "invalid_adapter"


class UnsupportedParameter(InvalidRequest):
    """A parameter of the API that is not honoured was given a value other than its default."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and max_tokens together, exceed the context or the whole KV cache."""

    code = "context_length_exceeded"


class TrainingDiverged(InvalidRequest):
    """A fine-tuning job's loss or gradient is not finite any more; the message names the step."""

    code = "training_diverged"


class AuthenticationFailed(RequestError):
    status = 401
    error_type = "invalid_request_error"
    code = "invalid_api_key"


class HostNotAllowed(RequestError):
    """The server was called by a name that is not one of its own."""

    status = 403
    error_type = "invalid_request_error"
    code = "host_not_allowed"


class PermissionDenied(RequestError):
    """Who calls is known, or need not be, and may not do this."""

    status = 403
    error_type = "invalid_request_error"
    code = "permission_denied"


class NotFound(RequestError):
    status = 404
    error_type = "invalid_request_error"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(RequestError):
    status = 405
    error_type = "invalid_request_error"


class BodyTimeout(RequestError):
    """The client was too slow with its body; it may try again."""

    status = 408
    error_type = "invalid_request_error"
    code = "body_timeout"


class PayloadTooLarge(RequestError):
    status = 413
    error_type = "invalid_request_error"


class UnsupportedMediaType(RequestError):
    status = 415
    error_type = "invalid_request_error"


class RateLimited(RequestError):
    """This API key has reached a limit of its own; others have not. `retry_after_s` as of Unavailable."""

    status = 429
    error_type = "requests"
    code = "rate_limit_exceeded"
    retry_after_s = 1.0


class ServerError(RequestError):
    """A fault of ours; ends the one request that it struck."""


class Unavailable(RequestError):
    """Loading, draining or stopped. `retry_after_s` becomes the Retry-After header."""

    status = 503
    error_type = "server_error"
    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """More work waits than is taken on: for the engine, or for the threads that read texts and compile grammars."""

    code = "overloaded"


class StorageUnavailable(Unavailable):
    """The data directory, or the database in it, cannot be used now; everything else goes on."""

    code = "storage_unavailable"


class StorageFull(RequestError):
    """What is to be stored has no room, on the disk or within the server's limit, before something is deleted."""

    status = 507
    error_type = "server_error"
    code = "storage_full"
