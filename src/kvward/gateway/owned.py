"""Everything by which some server lets a caller choose a cache scope: owned by the gateway.

One table, a row for each field or header, with where it comes from. Fields are removed at the top
level of the body; a nested place is written with dots.
"""

from __future__ import annotations

OWNED_FIELDS: dict[str, str] = {
    "cache_salt": "vLLM, SGLang, TensorRT-LLM, Dynamo: the scope itself; replaced by the token",
    "extra_key": "SGLang native API: mixed into the radix tree's key",
    "user_cache_secret": "confidential-inference routers: derives the salt",
    "prompt_cache_key": "OpenAI: routes to a cache; here it only narrows the conversation",
    "prompt_cache_retention": "OpenAI: lifetime of cached prefixes",
    "cache_control": "Anthropic and gateways: marks what to cache, with a lifetime",
    "cached_content": "Google: names stored content",
    "kv_transfer_params": "vLLM: loads and names blocks, may replace the prompt's tokens",
    "vllm_xargs": "vLLM: arbitrary engine arguments, a session id among them",
    "session_id": "several: binds a request to a slot or session",
    "session_params": "SGLang: continues a server-side session",
    "id_slot": "llama.cpp: chooses the slot whose cache is reused",
    "slot_id": "llama.cpp, older name",
    "cache_prompt": "llama.cpp: reuse of the slot's prompt",
    "lmcache": "LMCache: tags that enter its key",
    "request_id": "vLLM: the id under which the engine keeps the request",
    "data_parallel_rank": "vLLM, SGLang: chooses the replica",
    "bootstrap_room": "SGLang: names the transfer between prefill and decode",
    "bootstrap_host": "SGLang: where prefilled state is fetched from",
    "bootstrap_port": "SGLang: where prefilled state is fetched from",
    "priority": "vLLM, SGLang: order of scheduling and preemption",
    "extra_body": "client libraries by mistake: holds any of these",
    "nvext": "Dynamo: holds a cache salt and routing hints",
    "cache_scope": "several gateways",
    "tenant_id": "several gateways",
    "x-session-affinity": "Fireworks, as a field",
    "conversation": "OpenAI Responses: names a stored conversation; here it names a scope's",
    "ec_transfer_params": "vLLM: names what an encoder computed for another request",
    "extra_args": "vLLM, in sampling_params: where kv_transfer_params end up in the engine",
    "container": "Anthropic: names a container with the state of earlier requests",
    "lora_request": "vLLM, in engine arguments: names an adapter by path",
}

REFUSED_FIELDS: dict[str, str] = {
    "previous_response_id": "continues stored state of the server, without a tenant",
    "store": "stores state on the server, without a tenant",
    "background": "stores state on the server, without a tenant",
    "prompt_embeds": "a prompt that no block hash of tokens covers",
}
"""Fields that are refused when they ask for something (null and false ask for nothing)."""

MEDIA_NAMES: dict[str, str] = {
    "uuid": "names media as the engine keeps it for everybody",
    "prompt_embeds": "is a prompt that no block hash of tokens covers",
    "item_reference": "names an item that the server keeps",
    "file_id": "names a file that the server keeps",
}
"""Keys, or types, of parts of a prompt that are refused wherever they stand in it. vLLM takes a
part's uuid for the hash of its content: with it alone a request reads an image that somebody else
sent under it, and with it and content it plants one."""

FORWARDED_HEADERS = frozenset({b"accept", b"accept-language", b"content-type", b"user-agent"})
"""The only headers of a caller that reach the engine. Every other one is dropped, so that a header
that chooses a scope, a replica or a request id need not be known to be stopped."""

RETURNED_HEADERS = frozenset({b"content-type", b"cache-control", b"retry-after"})
"""The only headers of an engine that reach a caller."""

CONVERSATION_HEADER = b"x-kvward-conversation"
PSEUDONYM_HEADER = b"x-kvward-conversation-id"
