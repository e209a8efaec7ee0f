"""Wire shapes of the OpenAI API as pydantic models; no behaviour, no engine types. Any thread."""
