from __future__ import annotations

from service.protocol.error_body import ErrorBody, ErrorDetail


def test_null_fields_are_written() -> None:
    body = ErrorBody(error=ErrorDetail(message="m", type="t", param=None, code=None))
    assert body.model_dump_json() == '{"error":{"message":"m","type":"t","param":null,"code":null}}'
