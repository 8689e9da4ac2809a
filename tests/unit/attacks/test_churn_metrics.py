"""Reading what a server tells of its cache."""

from attacks.churn.metrics import parse_unverified_metrics

VLLM = b"""# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="canary"} 0.25
vllm:num_requests_running{engine="0",model_name="canary"} 3.0
vllm:num_requests_running{engine="1",model_name="canary"} 1.0
vllm:num_requests_waiting{engine="0",model_name="canary"} 0.0
vllm:num_preemptions_total{engine="0",model_name="canary"} 17.0
vllm:num_preemptions_created{engine="0",model_name="canary"} 1.7e+09
python_info{version="3.11"} 1.0
"""


def test_prometheus_text_is_read_and_engines_are_added_up() -> None:
    state = parse_unverified_metrics(VLLM)
    assert state is not None
    assert state.kv_usage_ratio == 0.25
    assert (state.running, state.waiting, state.preemptions) == (4.0, 0.0, 17.0)
    assert not state.is_idle
    assert not state.is_counters_only


def test_an_idle_engine_holds_nothing() -> None:
    state = parse_unverified_metrics(VLLM.replace(b" 0.25", b" 0").replace(b" 3.0", b" 0"))
    assert state is not None
    assert not state.is_idle
    state = parse_unverified_metrics(b"vllm:kv_cache_usage_perc 0.0\nvllm:num_requests_running 0\n")
    assert state is not None
    assert state.is_idle


def test_counters_as_json_are_read_and_a_counter_not_listed_is_zero() -> None:
    state = parse_unverified_metrics(b'{"cached_tokens":5,"preemptions":2}')
    assert state is not None
    assert state.preemptions == 2
    assert state.kv_usage_ratio is None
    assert state.is_counters_only
    state = parse_unverified_metrics(b"{}")
    assert state is not None
    assert state.preemptions == 0


def test_names_that_are_not_there_are_unknown_and_nonsense_is_nothing() -> None:
    state = parse_unverified_metrics(b"other:thing 1\n")
    assert state is not None
    assert state.kv_usage_ratio is None
    assert state.preemptions is None
    for nonsense in (b"", b"<html>", b"{not json", b'{"a":"b"}', b"\xff\xfe"):
        assert parse_unverified_metrics(nonsense) is None
