"""Settings of the HTTP server: addresses, keys, limits on requests."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ByteSize, Field, model_validator

from service.config import UPLOAD_PATH, ConnectionLimits, ListenAddress
from service.errors import ConfigError
from service.settings.api_key_file import read_api_keys
from service.settings.lists import HostNames, Keys, Names

MOST_LOGPROBS = 128
"""The most log probabilities per position that the executor returns (service/sampling/logprobs.py)."""


class HttpSettings(BaseModel):
    """One of the groups that `Settings` is made of."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0: all addresses")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: a free port")
    uds: Path | None = Field(None, description="Unix socket to listen on, instead of host and port")
    ssl_certfile: Path | None = Field(None, description="certificate chain (PEM); if set, only HTTPS is served")
    ssl_keyfile: Path | None = Field(
        None, description="the certificate's private key (PEM), if it is not in the same file"
    )
    api_key: Keys = Field(
        (), description="accepted bearer keys, comma-separated, each KEY or NAME:KEY; open to all if not set"
    )
    api_key_file: Path | None = Field(
        None, description="file with accepted bearer keys, one per line, each KEY or NAME:KEY; read at startup"
    )
    admin_api_key: Keys = Field(
        (), description="operators' bearer keys, comma-separated, each KEY or NAME:KEY; no admin routes if not set"
    )
    admin_api_key_file: Path | None = Field(
        None, description="file with operators' bearer keys, one per line, each KEY or NAME:KEY; read at startup"
    )
    max_requests_per_key: int | None = Field(
        None,
        ge=1,
        description="maximum number of running and waiting requests of one key; beyond it, 429; no limit if not set",
    )
    root_path: str | None = Field(
        None, pattern=r"^(/[A-Za-z0-9._~-]+)+$", description="path prefix that a proxy adds (/llm)"
    )
    guard_metrics: bool = Field(False, description="/metrics requires a key too")
    allowed_hosts: HostNames = Field(
        (),
        description="Host names under which the server may be called, besides localhost and IP addresses,"
        " comma-separated; *: all, the default with keys or beyond loopback",
    )
    allowed_origins: Names = Field(
        (), description="origins of web pages that may call from a browser, comma-separated; *: all; none if not set"
    )
    strict_params: bool = Field(False, description="reject unknown request fields instead of naming them in a header")
    max_stops: int = Field(16, ge=1, le=64, description="maximum number of stop strings per request")
    max_logprobs: int = Field(
        20,
        ge=-1,
        le=MOST_LOGPROBS,
        description="maximum number of top logprobs per position; -1: as many as possible, 128",
    )
    enable_force_include_usage: bool = Field(False, description="every chunk of every stream carries the usage")
    return_tokens_as_token_ids: bool = Field(
        False, description="logprobs name tokens by id (token_id:7) in every answer"
    )
    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "pythonic"] = Field(
        "auto", description="format of the model's tool calls; auto: detected from the chat template"
    )
    reasoning_parser: Literal["auto", "none"] = Field(
        "auto", description="auto: separate reasoning from content if the chat template has reasoning; none: do not"
    )
    max_connections: int = Field(10_000, ge=1, description="maximum number of open connections")
    max_body_bytes: ByteSize = Field(ByteSize(8 * 1024**2), gt=0, description="maximum size of a request body")
    max_total_body_bytes: ByteSize = Field(
        ByteSize(256 * 1024**2),
        gt=0,
        description="maximum size of all request bodies that are being read; beyond it, 503",
    )
    responses_store: bool = Field(
        False, description="keep responses in memory: previous_response_id, background, GET /v1/responses/{id}"
    )
    responses_store_size: ByteSize = Field(
        ByteSize(256 * 1024**2), gt=0, description="memory for kept responses; the oldest are dropped first"
    )
    _keys_of_file: tuple[str, ...] = ()
    _admin_keys_of_file: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _read_key_files(self) -> HttpSettings:
        try:
            if self.api_key_file is not None:
                self._keys_of_file = read_api_keys(self.api_key_file, "api-key-file")
            if self.admin_api_key_file is not None:
                self._admin_keys_of_file = read_api_keys(self.admin_api_key_file, "admin-api-key-file")
        except ConfigError as fault:
            raise ValueError(str(fault)) from None
        return self

    @model_validator(mode="after")
    def _check_admin_keys(self) -> HttpSettings:
        keys, admin_keys = ({entry.rpartition(":")[2] for entry in each} for each in (self._keys(), self._admin_keys()))
        if keys & admin_keys:
            raise ValueError(
                "admin-api-key and api-key have a key in common: every client that has it would be an admin"
            )
        return self

    @model_validator(mode="after")
    def _check_key_limit(self) -> HttpSettings:
        if self.max_requests_per_key is not None and not self._keys():
            raise ValueError("max-requests-per-key needs api-key or api-key-file")
        return self

    @model_validator(mode="after")
    def _check_body_bytes(self) -> HttpSettings:
        if self.max_total_body_bytes < self.max_body_bytes:
            raise ValueError(
                f"max-total-body-bytes ({int(self.max_total_body_bytes)}) must be at least max-body-bytes"
                f" ({int(self.max_body_bytes)})"
            )
        return self

    @model_validator(mode="after")
    def _check_certificate(self) -> HttpSettings:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl-keyfile needs ssl-certfile")
        return self

    def _keys(self) -> tuple[str, ...]:
        return self.api_key + self._keys_of_file

    def _admin_keys(self) -> tuple[str, ...]:
        return self.admin_api_key + self._admin_keys_of_file

    def _hosts(self) -> tuple[str, ...]:
        """On a loopback address without keys there is one user, with a browser, so host names are restricted; elsewhere
        the server has names that only its owner knows."""
        if self.allowed_hosts or self._keys() or self.uds is not None or not is_loopback(self.host):
            return self.allowed_hosts or ("*",)
        return ()

    def listen_address(self) -> ListenAddress:
        return ListenAddress(self.host, self.port, self.uds, self.ssl_certfile, self.ssl_keyfile)

    def connection_limits(self) -> ConnectionLimits:
        paths = dict.fromkeys((UPLOAD_PATH, f"{self.root_path or ''}{UPLOAD_PATH}"))
        most = int(self.max_body_bytes)
        return ConnectionLimits(max_connections=self.max_connections, max_body_bytes=most, upload_paths=tuple(paths))


def is_loopback(host: str) -> bool:
    """Whether it can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
