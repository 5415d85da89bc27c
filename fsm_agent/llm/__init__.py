"""One adapter to OpenAI-compatible models: a request, the bytes of its stream, and a Reply."""
