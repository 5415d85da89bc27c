"""How an OpenAI-compatible server is asked to put sound into words."""

from __future__ import annotations

import asyncio
import importlib
from datetime import UTC, datetime
from typing import Any

from fsm_agent.errors import ProviderError
from fsm_agent.llm.connections import Endpoint
from fsm_agent.llm.failures import classify
from fsm_agent.llm.limits import Limits
from fsm_agent.llm.wire import usage_of
from fsm_agent.run.content import Usage

_ENDINGS = {
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mp4": "m4a",
    "video/mp4": "mp4",
    "video/webm": "webm",
}


async def transcribe(
    endpoint: Endpoint, data: bytes, media_type: str, limits: Limits
) -> tuple[str, Usage | None]:
    """The words, and the usage where the server counts it. Asks once. Raises ProviderError."""
    openai: Any = await asyncio.to_thread(importlib.import_module, "openai")
    # Servers go by the name's ending; ours says what the bytes are.
    name = f"sound.{_ENDINGS.get(media_type, 'bin')}"
    client = openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, timeout=limits.whole_s
    )
    try:
        async with client:
            said = await client.audio.transcriptions.create(
                model=endpoint.model, file=(name, data, media_type)
            )
    except openai.APITimeoutError as error:
        raise ProviderError("timeout", "the server took too long", is_retryable=True) from error
    except openai.APIConnectionError as error:
        words = f"no connection to {endpoint.base_url}"
        raise ProviderError("unreachable", words, is_retryable=True) from error
    except openai.APIStatusError as error:
        status, body = error.status_code, error.response.text
        failure = classify(status, body, dict(error.response.headers), datetime.now(UTC))
        raise ProviderError(
            failure.kind, failure.said, is_retryable=failure.is_retryable, status=status
        ) from error
    except openai.OpenAIError as error:
        raise ProviderError("malformed_stream", str(error)[:200], is_retryable=False) from error
    text = getattr(said, "text", said)
    if not isinstance(text, str):
        raise ProviderError("malformed_stream", "the server sent no text", is_retryable=False)
    used = getattr(said, "usage", None)
    usage = usage_of(used.model_dump() if used is not None else None)
    return text, usage if usage and usage.total_tokens else None
