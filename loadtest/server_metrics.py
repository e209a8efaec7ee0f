"""Reads a server's /metrics."""

from prometheus_client.parser import text_string_to_metric_families

from loadtest.direct_http import opened

_TIMEOUT_S = 10.0


def read_metrics(base_url: str) -> dict[str, float]:
    """Every sample: name with its labels in braces -> value. Raises OSError if the server does not answer."""
    with opened(f"{base_url}/metrics", _TIMEOUT_S) as response:
        text = response.read().decode()
    return {
        sample.name + ("{" + ",".join(f"{k}={v}" for k, v in sample.labels.items()) + "}" if sample.labels else ""): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
